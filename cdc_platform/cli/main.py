"""The program `cdc-platform`: its options, its table of commands, and its mapping of failures to exit codes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cdc_platform import __version__
from cdc_platform.cli.command_hints import add_home_option
from cdc_platform.cli.commands import COMMAND_GROUPS, COMMANDS, PROGRAM_NAME
from cdc_platform.cli.output import StandardStream, escape_unprintable, standard_streams, warn
from cdc_platform.cli.params import TIME
from cdc_platform.cli.session import CliSession
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import (
    WRITE_TO_OBSERVED_OPTION,
    CommitAuthor,
    WriteSource,
    commit_as,
    track_commits,
    track_reads,
    write_as,
)
from cdc_platform.errors import (
    InputError,
    NotAsCommitted,
    NotFound,
    PlatformError,
    StateError,
    StoreFailure,
    Unavailable,
    disk_full_error,
    is_disk_full,
    is_valid_utf8,
    to_one_line,
)

if TYPE_CHECKING:
    from cdc_platform.delta import ReadFailureCause

EXIT_OK, EXIT_FAILED, EXIT_BAD_REQUEST, EXIT_DEFECT, EXIT_INTERRUPTED = 0, 1, 2, 70, 130

_OUTPUT_ONLY_COMMANDS = frozenset({"sql", "status", "streams", "watch"})
"""Commands that do nothing but print, at length or for ever. They end when standard output fails."""
_ROW_ERRORS = (InputError, NotFound, StateError)
"""Errors that can be due to a table changed by something else than the platform. The message then names the table."""
_DAMAGE_CODES = frozenset({StoreFailure.code, NotAsCommitted.code})
"""Codes of failures due to damaged tables. A command of several commits can fail so after some of them."""


def _is_installed(name: str) -> bool:
    """Return True if the module of a command exists, without loading it."""
    return find_spec(f"{__package__}.{COMMANDS[name][0].partition(':')[0]}") is not None


def _list_options(commands: Iterable[click.Command]) -> dict[str, bool]:
    """Return the option names of commands. The value is True if the option takes a value."""
    return {
        name: not (parameter.is_flag or parameter.count)
        for command in commands
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def _takes_next(options: Mapping[str, bool], word: str) -> bool:
    """Return True if `word` is an option whose value is the next argument."""
    return options.get(word, False)


class CommandFailure(click.ClickException):
    """A failure as printed: one line on standard error, its `kind` (a code of docs/codes.md), and the exit code."""

    def __init__(self, message: str, code: int, kind: str | None = None) -> None:
        super().__init__(message)
        self.code, self.kind = code, kind


class _EscapingFormatter(logging.Formatter):
    """Format log lines with unprintable characters escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_unprintable(super().formatMessage(record))


def _is_not_py4j_record(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


class CommandGroup(click.Group):
    """The group of commands. It loads them by name, and it alone turns errors into lines and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if _is_installed(name)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the global options, which may also stand after the command."""
        return super().parse_args(ctx, self._move_global_options_first(ctx, args))

    def _move_global_options_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with the global options of the part after the command moved before it.

        An argument that is the value of the command's own option, or stands after `--`, is no global option.
        """
        global_options = _list_options([self])
        start = 0
        while start < len(args) and args[start].startswith("-"):
            start += 1 + _takes_next(global_options, args[start])
        if start >= len(args) or ctx.resilient_parsing:
            return args
        command = self.get_command(ctx, args[start])
        commands: list[click.Command] = [] if command is None else [command]
        if isinstance(command, click.Group):
            commands += command.commands.values()
        own_options = _list_options(commands)
        moved, rest = [], args[start : start + 1]
        index = start + 1
        while index < len(args) and args[index] != "--":
            word = args[index]
            name = word.partition("=")[0]
            is_global = name in global_options and name not in own_options
            count = 1 + _takes_next(global_options if is_global else own_options, word)
            (moved if is_global else rest).extend(args[index : index + count])
            index += count
        return [*args[:start], *moved, *rest, *args[index:]]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not _is_installed(cmd_name):
            return None
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        return getattr(import_module(f"{__package__}.{module}"), function)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the requested command, and make it the author of all later commits (without its arguments)."""
        if self.get_command(ctx, args[0]) is None:
            close = get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"did you mean {close[0]!r}?" if close else f"see: {PROGRAM_NAME} --help"
            raise CommandFailure(f"no such command {args[0]!r}; {hint}", EXIT_BAD_REQUEST, "usage")
        name, command, rest = super().resolve_command(ctx, args)
        inner = rest[0] if isinstance(command, click.Group) and rest and command.get_command(ctx, rest[0]) else ""
        path = f"{name} {inner}".strip()
        ctx.with_resource(commit_as(CommitAuthor("command line", path)))
        if isinstance(sys.stdout, StandardStream):
            sys.stdout.ends_with_it = path in _OUTPUT_ONLY_COMMANDS
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list of the help text without loading any command."""
        width = max(map(len, COMMANDS))
        for title, commands in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), summary) for name, (_, summary) in commands.items() if _is_installed(name)]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and convert a failure into one line and an exit code."""
        with track_reads() as read, track_commits() as commits:
            try:
                return self._invoke(ctx, read)
            except CommandFailure as failure:
                if commits and failure.kind in _DAMAGE_CODES:  # exit code 2 would mean that nothing is committed
                    failure.code = EXIT_FAILED
                raise

    def _invoke(self, ctx: click.Context, read: Set[str]) -> Any:
        try:
            return self._invoke_interruptible(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except PlatformError as error:
            _print_traceback(ctx)
            cause = _find_damage(ctx, read) if isinstance(error, _ROW_ERRORS) else None
            message = str(error) if cause is None or cause.table in str(error) else f"{error}; {cause}"
            raise CommandFailure(add_home_option(message, ctx.params["home"]), error.exit_code, error.code) from error
        except KeyboardInterrupt:
            raise _interrupted_failure() from None
        except OSError as error:
            if error is _stream_failure(sys.stdout):
                raise click.exceptions.Exit(EXIT_OK) from None
            _print_traceback(ctx)
            if is_disk_full(error):
                full = disk_full_error(error.filename or "the device")
                raise CommandFailure(str(full), EXIT_BAD_REQUEST, full.code) from error
            # Without an errno a library raised it, about a file.
            if error.errno is None and (cause := _find_damage(ctx, read)) is not None:
                message = add_home_option(f"{to_one_line(str(error))}; {cause}", ctx.params["home"])
                raise CommandFailure(message, EXIT_BAD_REQUEST, StoreFailure.code) from error
            where = f"{error.filename}: " if error.filename else ""
            raise CommandFailure(f"{where}{error.strerror or error}", EXIT_BAD_REQUEST, Unavailable.code) from error
        except Exception as error:
            _print_traceback(ctx)
            cause = _find_damage(ctx, read)
            if cause is not None:
                message = add_home_option(f"{cause} ({type(error).__name__})", ctx.params["home"])
                raise CommandFailure(message, EXIT_BAD_REQUEST, StoreFailure.code) from error
            raise CommandFailure(
                f"this is a defect of {PROGRAM_NAME}: {type(error).__name__}: {to_one_line(str(error))[:300]}; "
                f"{PROGRAM_NAME} --debug {ctx.invoked_subcommand or ''} ... shows where",
                EXIT_DEFECT,
                "defect",
            ) from error

    def _invoke_interruptible(self, ctx: click.Context) -> Any:
        """Run the command; raise KeyboardInterrupt if an error replaced it.

        Ctrl-C also ends the JVM. Clean-up that asks the JVM for something then raises its own error.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            if any(isinstance(each, KeyboardInterrupt) for each in _iter_chain(error)):
                raise KeyboardInterrupt from error
            raise

    def make_context(self, info_name: str | None, args: list[str], *pos: Any, **extra: Any) -> click.Context:
        """Parse the options, and convert Ctrl-C into one line here too.

        Raises:
            UsageError: an argument is not UTF-8, so no table, file of the lake or output can contain it.
        """
        try:
            for number, word in enumerate(args, 1):
                if not is_valid_utf8(word):
                    raise click.UsageError(f"argument {number}, {word!r}, is not UTF-8; write it, or name the file, so")
            return super().make_context(info_name, args, *pos, **extra)
        except KeyboardInterrupt:
            raise _interrupted_failure() from None

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        *pos: Any,
        interruptible: bool = False,
        **extra: Any,
    ) -> NoReturn:
        """Run the program and end the process with its exit code.

        `interruptible`: the process handles Ctrl-C and is this program's alone, so that Ctrl-C at exit ends it at once.
        """
        extra["standalone_mode"] = False
        with standard_streams() as output, _allow_interrupts(interruptible):
            try:
                code = super().main(args, PROGRAM_NAME, *pos, **extra)
            except click.Abort:
                sys.exit(EXIT_INTERRUPTED)
            except click.ClickException as error:
                kind = error.kind if isinstance(error, CommandFailure) else "usage"
                click.echo(f"error: {escape_unprintable(_error_line(error))}{f' [{kind}]' if kind else ''}", err=True)
                sys.exit(error.code if isinstance(error, CommandFailure) else EXIT_BAD_REQUEST)
            output.flush()
            sys.exit(_final_exit_code(output, code if isinstance(code, int) else EXIT_OK))


_may_end_jvm = threading.Event()
"""Set if the process is this program's alone. A JVM in it is then its own, and not that of a calling program."""


@contextmanager
def _allow_interrupts(hears: bool) -> Iterator[None]:
    """Let Ctrl-C interrupt the block. Afterwards it ends the process at once, or exit handlers would print a stack."""
    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _may_end_jvm.set()
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"error: {_interrupted_failure().message}", err=True)
        os._exit(EXIT_INTERRUPTED)
    finally:
        if hears:
            signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(EXIT_INTERRUPTED))


def _iter_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that were being handled when it was raised, newest first."""
    while error is not None:
        yield error
        error = error.__context__


def _interrupted_failure() -> CommandFailure:
    """Return the failure for Ctrl-C, after ending the JVM that this process started, if any."""
    session = sys.modules.get("cdc_platform.spark.session")
    if session is not None and _may_end_jvm.is_set():
        session.end_jvm()
    return CommandFailure("interrupted", EXIT_INTERRUPTED)


def _find_damage(ctx: click.Context, read: Set[str]) -> ReadFailureCause | None:
    """Return the first table that is damaged or that somebody else changed, among those that a failed command has read.

    That may be the cause of the failure. Return None if there is no such table, or the search fails too.
    """
    if not read:
        return None
    from cdc_platform.delta import Lake, find_first_cause
    from cdc_platform.home_location import locate_home

    try:
        return find_first_cause(Lake(str(locate_home(ctx.params["home"]) / "lake")), set(read))
    except (PlatformError, OSError):  # the command's own failure is reported anyway
        return None


def _stream_failure(stream: object) -> OSError | None:
    """Return the failure of a standard stream, or None."""
    return stream.failure if isinstance(stream, StandardStream) else None


def _final_exit_code(output: StandardStream, code: int) -> int:
    """Return the exit code of a command whose own code is `code` and whose result went to `output`.

    A reader that closed the pipe has read what it wanted. Any other failure means that the result was lost.
    """
    if output.failure is None or output.failure.errno == errno.EPIPE:
        return code
    done = "" if output.ends_with_it else "; the command itself ran to its end"
    reason = output.failure.strerror or output.failure
    warn(f"the result could not be written to standard output: {reason}{done}", code="result-not-written")
    return code or EXIT_FAILED


def _error_line(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and not isinstance(error, click.BadParameter) and error.ctx is not None:
        line = f"{line.rstrip('.')}; see: {error.ctx.command_path} --help"
    return line


def _print_traceback(ctx: click.Context) -> None:
    if ctx.params.get("debug"):
        traceback.print_exc(file=sys.stderr)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROGRAM_NAME)
@click.option(
    "--home",
    metavar="HOME",
    help="The folder or bucket of the platform's data: a path, or s3://bucket/prefix."
    " [default: $CDC_PLATFORM_HOME or ./.cdc-platform]",
)
@click.option("--clock", type=TIME, help="Stop the platform's clock at this time, as in 2026-01-31T12:00:00Z.")
@click.option("-v", "--verbose", is_flag=True, help="Print each step on standard error.")
@click.option("--debug", is_flag=True, help="Show where a failure comes from.")
@click.option(
    WRITE_TO_OBSERVED_OPTION, "build", is_flag=True, help="Write to a home that is read-only because it is incomplete."
)
@click.pass_context
def program(
    ctx: click.Context, home: str | None, clock: Microseconds | None, verbose: bool, debug: bool, build: bool
) -> None:
    """Manage the life cycle of ScyllaDB's CDC generations.

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
        handler.setFormatter(_EscapingFormatter("%(levelname)s %(name)s: %(message)s"))
    # py4j logs an interrupt with its stack trace, through its own logger and through the root logger.
    logging.getLogger("py4j").setLevel(logging.DEBUG if debug else logging.CRITICAL + 1)
    if not debug:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_is_not_py4j_record)
    logging.getLogger("cdc_platform").setLevel(logging.INFO if verbose else logging.WARNING)
    if build:
        ctx.with_resource(write_as(WriteSource.STATED))
    ctx.obj = CliSession(home, Clock(clock))
