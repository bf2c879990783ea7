"""The program `cdc-platform`: its options, its commands by name, and how every failure becomes one line and a code.

Commands are loaded when they are used; what they do is theirs.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cdc_platform import __version__
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.commands.advice import with_home
from cdc_platform.commands.arguments import TIME
from cdc_platform.commands.output import StandardStream, escaped, standard_streams, warn
from cdc_platform.commands.session import Session
from cdc_platform.errors import (
    InputError,
    NotAsCommitted,
    NotFound,
    PlatformError,
    StateError,
    StoreFailure,
    Unavailable,
    is_full,
    is_text,
    no_space,
    one_line,
)
from cdc_platform.lake.envelope import Speaker, speaking_for
from cdc_platform.lake.looking import OPTION, looking_on
from cdc_platform.lake.reads import recording_commits, recording_reads

if TYPE_CHECKING:
    from cdc_platform.lake.verification import Cause

NAME = "cdc-platform"
DONE, NO, WRONG_REQUEST, DEFECT, INTERRUPTED = 0, 1, 2, 70, 130

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo", "The main job on real ring snapshots, end to end."),
    "up": ("up", "A warm Spark server, the Dagster UI and its daemon."),
    "doctor": ("doctor", "Is this machine fit: Java, versions, JARs, home, disk."),
    "bootstrap": ("bootstrap", "Queue a joining node; with --run, make its generation."),
    "import": ("import_files", "Take in ring snapshots and cqlsh exports."),
    "export": ("export", "Write generations, stream sets, logs and the ring as files, or into a test cluster."),
    "cluster": ("cluster", "Live clusters by name: add, test, remove; the list of them."),
    "observe": ("observe", "Take in what a live cluster holds; writes nothing to it."),
    "status": ("status", "How the home stands, on one screen, and the next thing to do."),
    "watch": ("watch", "A live cluster as it changes, in the terminal or as JSON lines."),
    "ingest": ("ingest", "Bring in the CDC log of a live cluster, each row once."),
    "generations": ("generations", "List the generations, newest first."),
    "streams": ("streams", "Print a generation's streams, range by range."),
    "ring": ("ring", "Show the nodes of the ring as it stands."),
    "home": ("home", "Homes as a whole: copy one to another place, keep up files."),
    "history": ("history", "Who wrote what of a generation: commits and runs."),
    "report": ("report", "A page for an auditor, and whether it still holds."),
    "diff": ("diff", "What changes from one generation to another."),
    "explain": ("explain", "Where a write goes, and whether it is accepted."),
    "check": ("check", "Judge every invariant, with counts and samples."),
    "rewrite": ("rewrite", "Rewrite V1 streams tables into the new ones."),
    "repair": ("repair", "Does the latest generation fit the ring; if not, make one."),
    "rehearse": ("rehearse", "What topology changes would do, before they are made."),
    "tables": ("tables", "The CDC-enabled tables, with their TTL and its history."),
    "tablets": ("tablets", "Stream sets of tablet-based tables: create, split, merge, show, gc."),
    "switch": ("switch", "Two-phase switches of generations: show, ack, commit, abort."),
    "consumers": ("consumers", "Who reads the CDC logs, and how far each has got."),
    "expire": ("expire", "Which generations can go, and why others cannot; removes them."),
    "log": ("log", "CQL statements, their log rows, and the tables rebuilt from those."),
    "consume": ("consume", "Copy what is new in a table's CDC log, each row once."),
    "complete": ("complete", "Was everything between two times read by a consumer: proof."),
    "sql": ("sql", "A query over every table, under ScyllaDB's own names."),
    "bundle": ("bundle", "Pack status, findings, versions and ends of logs into one file."),
    "completion": ("completion", "Print a shell's completion script."),
}
"""Commands by name: the module in cdc_platform.commands that has the function `<module>`, and what help says."""


_BUILDS: Mapping[str, str] = {
    "demo": "",
    "bootstrap": "",
    "rewrite": "",
    "repair": "",
    "expire": "",
    "consume": "",
    "consumers forget": "",
    "switch ack": "",
    "switch commit": "",
    "switch abort": "",
    "tablets create": "",
    "tablets split": "",
    "tablets merge": "",
    "tablets resize": "",
    "tablets gc": "",
    "log": "--keep",
}
"""The commands that build on a home, each with the option that it needs for it: refused where that is only observed."""
_OF_READERS = frozenset({"consume", "consumers forget"})
"""Those of them which write what readers have done: nothing of that is a fact of the cluster."""
_TELL = frozenset({"import", "tables add", "tables none", "tables alter", "tables drop"})
"""The commands that tell of a cluster by other means than looking at it: refused where it is looked at."""
_ONLY_WRITE = frozenset({"sql", "status", "streams", "watch"})
"""The commands that do nothing but write, much or for ever: they end where nobody takes what they write."""
_OF_NOW = frozenset({"--ttl", "--enabled", "--disabled"})
"""The options of `tables alter` that tell how a table stands now, which a look at the cluster shows."""
_OF_PAST = frozenset({"--created-at", "--ttl-since"})
"""Those that state how old a log is and since when its TTL is in force, which no look at a cluster shows."""
_OF_ROWS = (InputError, NotFound, StateError)
"""Errors that a table can cause which is not as the platform left it: then the message names that table too."""
_OF_DAMAGE = frozenset({StoreFailure.code, NotAsCommitted.code})
"""Failures over damaged tables, which a command of several commits can meet behind some of them."""
_ONLY_SHOW = frozenset({"--dry-run", "--forecast", "--cql", "--clients", "--list", "--help", "-h"})


def _is_there(name: str) -> bool:
    """Whether the module of a command is there, looked up without loading it."""
    return find_spec(f"{__package__}.{COMMANDS[name][0]}") is not None


class Failure(click.ClickException):
    """A failure as it is shown: one line on standard error, its `kind` (a code of docs/codes.md), and the exit code."""

    def __init__(self, message: str, code: int, kind: str | None = None) -> None:
        super().__init__(message)
        self.code, self.kind = code, kind


class _Remark(logging.Formatter):
    """A line of the log, with what cannot be shown escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


class Program(click.Group):
    """The group of commands: loads them by name, and is the one edge at which errors become lines and codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if _is_there(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not _is_there(cmd_name):
            return None
        module = COMMANDS[cmd_name][0]
        return getattr(import_module(f"{__package__}.{module}"), module)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command that is asked for, in whose name is committed from here on; none of its arguments is told."""
        name, command, rest = super().resolve_command(ctx, args)
        inner = rest[0] if isinstance(command, click.Group) and rest and command.get_command(ctx, rest[0]) else ""
        path = f"{name} {inner}".strip()
        ctx.with_resource(speaking_for(Speaker("command line", path)))
        if isinstance(sys.stdout, StandardStream):
            sys.stdout.ends_with_it = path in _ONLY_WRITE
        if makes_up(path, rest):
            _assert_no_mirror(ctx, path)
        if builds(path, rest):
            _assert_may_build(ctx, path)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help text, which loads none of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a failure leaves as one line with its exit code."""
        with recording_reads() as read, recording_commits() as commits:
            try:
                return self._invoke(ctx, read)
            except Failure as failure:
                if commits and failure.kind in _OF_DAMAGE:  # some of it is done: 2 says that nothing is
                    failure.code = NO
                raise

    def _invoke(self, ctx: click.Context, read: Set[str]) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except PlatformError as error:
            _trace(ctx)
            cause = _damage_behind(ctx, read) if isinstance(error, _OF_ROWS) else None
            said = str(error) if cause is None or cause.table in str(error) else f"{error}; {cause}"
            raise Failure(with_home(said, ctx.params["home"]), error.exit_code, error.code) from error
        except KeyboardInterrupt:
            raise _interrupted() from None
        except OSError as error:
            if error is _failure_of(sys.stdout):
                raise click.exceptions.Exit(DONE) from None
            _trace(ctx)
            if is_full(error):
                full = no_space(error.filename or "the device")
                raise Failure(str(full), WRONG_REQUEST, full.code) from error
            if error.errno is None and (cause := _damage_behind(ctx, read)) is not None:  # a library's, of a file
                said = with_home(f"{one_line(str(error))}; {cause}", ctx.params["home"])
                raise Failure(said, WRONG_REQUEST, StoreFailure.code) from error
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}", WRONG_REQUEST, Unavailable.code) from error
        except Exception as error:
            _trace(ctx)
            cause = _damage_behind(ctx, read)
            if cause is not None:
                said = with_home(f"{cause} ({type(error).__name__})", ctx.params["home"])
                raise Failure(said, WRONG_REQUEST, StoreFailure.code) from error
            raise Failure(
                f"this is a defect of {NAME}: {type(error).__name__}: {one_line(str(error))[:300]}; "
                f"{NAME} --debug {ctx.invoked_subcommand or ''} ... shows where",
                DEFECT,
                "defect",
            ) from error

    def make_context(self, info_name: str | None, args: list[str], *pos: Any, **extra: Any) -> click.Context:
        """Read the options; Ctrl-C here is one line too.

        Raises:
            UsageError: an argument is not UTF-8: no table, no file of the lake and no output could have it.
        """
        try:
            for number, word in enumerate(args, 1):
                if not is_text(word):
                    raise click.UsageError(f"argument {number}, {word!r}, is not UTF-8; write it, or name the file, so")
            return super().make_context(info_name, args, *pos, **extra)
        except KeyboardInterrupt:
            raise _interrupted() from None

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        *pos: Any,
        interruptible: bool = False,
        **extra: Any,
    ) -> NoReturn:
        """Run the program and leave the process with the exit code.

        `interruptible`: the process hears Ctrl-C, and is this program's alone: once it leaves, another one ends it.
        """
        extra["standalone_mode"] = False
        with standard_streams() as output, _interruptible(interruptible):
            try:
                code = super().main(args, NAME, *pos, **extra)
            except click.Abort:
                sys.exit(INTERRUPTED)
            except click.ClickException as error:
                kind = error.kind if isinstance(error, Failure) else "usage"
                click.echo(f"error: {escaped(_line(error))}{f' [{kind}]' if kind else ''}", err=True)
                sys.exit(error.code if isinstance(error, Failure) else WRONG_REQUEST)
            output.flush()
            sys.exit(_told(output, code if isinstance(code, int) else DONE))


_may_end_jvm = threading.Event()
"""Set where the process is this program's alone: a JVM that it has is its own then, and not of who calls it."""


@contextmanager
def _interruptible(hears: bool) -> Iterator[None]:
    """Let Ctrl-C interrupt a block, and end the process at once behind it: what runs at exit would print a stack."""
    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _may_end_jvm.set()
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"error: {_interrupted().message}", err=True)
        os._exit(INTERRUPTED)
    finally:
        if hears:
            signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))


def _interrupted() -> Failure:
    """The failure of a command that Ctrl-C has ended, once the JVM that it started is gone, if it started one."""
    session = sys.modules.get("cdc_platform.lake.session")
    if session is not None and _may_end_jvm.is_set():
        session.end_jvm()
    return Failure("interrupted", INTERRUPTED)


def builds(path: str, arguments: Sequence[str]) -> bool:
    """Whether a command, which is `path`, would build on its home with these arguments, and not only look."""
    needed = _BUILDS.get(path)
    return needed is not None and needed in ("", *arguments) and _ONLY_SHOW.isdisjoint(arguments)


def makes_up(path: str, arguments: Sequence[str]) -> bool:
    """Whether a command, which is `path`, would write facts of a cluster that it did not see in one."""
    options = {word.partition("=")[0] for word in arguments}
    if path == "tables alter" and options & _OF_PAST and not options & _OF_NOW:
        return False
    if path in _TELL:
        return _ONLY_SHOW.isdisjoint(arguments)
    return builds(path, arguments) and path not in _OF_READERS


def _assert_no_mirror(ctx: click.Context, path: str) -> None:
    """Refuse, before a command does anything, what the mirror of a live cluster refuses; no option lets it."""
    from cdc_platform.home import location
    from cdc_platform.lake import mirrors

    home = location(ctx.params["home"])
    cluster = mirrors.mirror_at(home)
    if cluster is not None:
        raise mirrors.refusal(cluster, path, home)


def _assert_may_build(ctx: click.Context, path: str) -> None:
    """Refuse, before a command does anything, what its first commit would refuse."""
    from cdc_platform.home import location

    lake = location(ctx.params["home"]) / "lake"
    if ctx.params["build"] or not (lake / "platform/only_observed").is_folder():
        return
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.only_observed import assert_may_write

    assert_may_write(Lake(str(lake)), path)


def _damage_behind(ctx: click.Context, read: Set[str]) -> Cause | None:
    """What may have made a command fail: the first of the tables that it has read that is not as the platform left it.

    Looked up only once a command has failed.
    """
    if not read:
        return None
    from cdc_platform.home import location
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.verification import first_cause

    try:
        return first_cause(Lake(str(location(ctx.params["home"]) / "lake")), set(read))
    except (PlatformError, OSError):  # what the command has failed over is said all the same
        return None


def _failure_of(stream: object) -> OSError | None:
    """Return what a standard stream failed with, None where it did not."""
    return stream.failure if isinstance(stream, StandardStream) else None


def _told(output: StandardStream, code: int) -> int:
    """Return the exit code of a command with this one of its own, whose result went to `output`.

    A reader that closed the pipe has read what it wanted. Any other failure is a result that nobody has.
    """
    if output.failure is None or output.failure.errno == errno.EPIPE:
        return code
    done = "" if output.ends_with_it else "; the command itself ran to its end"
    reason = output.failure.strerror or output.failure
    warn(f"the result could not be written to standard output: {reason}{done}", code="result-not-written")
    return code or NO


def _line(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and not isinstance(error, click.BadParameter) and error.ctx is not None:
        line = f"{line.rstrip('.')}; see: {error.ctx.command_path} --help"
    return line


def _trace(ctx: click.Context) -> None:
    if ctx.params.get("debug"):
        traceback.print_exc(file=sys.stderr)


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=NAME)
@click.option(
    "--home",
    metavar="HOME",
    help="Where everything lives: a folder, or s3://bucket/prefix. [default: $CDC_PLATFORM_HOME or ./.cdc-platform]",
)
@click.option("--clock", type=TIME, help="Stop the platform's clock at this time, as in 2026-01-31T12:00:00Z.")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what is being done.")
@click.option("--debug", is_flag=True, help="Show where a failure comes from.")
@click.option(OPTION, "build", is_flag=True, help="Build on a home that is only observed: it is not whole.")
@click.pass_context
def program(
    ctx: click.Context, home: str | None, clock: Microseconds | None, verbose: bool, debug: bool, build: bool
) -> None:
    """The life of ScyllaDB's CDC generations on Dagster, Spark and Delta Lake.

    Exit code 0: done. 1: the answer is no, a check failed or a write is refused. 2: the request was wrong.

    \b
    Example:
      cdc-platform demo
      cdc-platform --clock 2026-01-31T12:00:00Z explain --token 42
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Remark("%(levelname)s %(name)s: %(message)s"))
    # py4j logs an interrupt with its stack, by a logger of its own and by the root.
    logging.getLogger("py4j").setLevel(logging.DEBUG if debug else logging.CRITICAL + 1)
    if not debug:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_is_not_of_py4j)
    logging.getLogger("cdc_platform").setLevel(logging.INFO if verbose else logging.WARNING)
    if build:
        ctx.with_resource(looking_on())
    ctx.obj = Session(home, Clock(clock))
