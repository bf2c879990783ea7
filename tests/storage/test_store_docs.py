"""What the pages on stores and on executors tell to type: it runs here as it stands, or it is named with the reason.

The commands of a cluster run in `test_cluster`, which has one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.nodes import node_text
from support.store.s3 import S3

from cdc_platform.cli.commands import COMMANDS
from cdc_platform.home_location import HOME_VARIABLE

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_PROGRAMS = ("cdc-platform", "export", "make", "pip", "spark-class")
_INSTALLS = "takes packages from outside: what is in the lock the tests have, the rest they look for"
_IN_TEST_CLUSTER = "needs a cluster of Spark: in test_cluster, as it stands or with this machine's addresses"
NOT_RUN = {
    "pip install 'cdc-platform[profiles]'": _INSTALLS,
    "make emulators": _INSTALLS,
    "cdc-platform sql --spark": "a command without its query, which test_spark has, and in a store test_every_command",
    "make demo-cluster": "two minutes of what test_cluster does",
    "cdc-platform up": "runs until Ctrl-C: in a store test_up_in_a_store, before a cluster its Connect server",
    "cdc-platform doctor --cluster": _IN_TEST_CLUSTER,
}
"""What is not run here, and why."""
_OF_A_CLUSTER = re.compile(r"^(spark-class|export CDC_PLATFORM_)")


def commands(page: str) -> list[str]:
    """What a page tells to type, in its order: lines of its blocks, and what it quotes that begins with a program.

    Also commands of the platform that are quoted without its name, if they have an option.
    """
    text = (_DOCS / page).read_text(encoding="utf-8")
    found, either = [], r"^ *```((sh|console)\n.*?)^ *```$|(?<!`)`([^`\n]+)`(?!`)"
    for block, language, quoted in re.findall(either, text, flags=re.MULTILINE | re.DOTALL):
        if language:
            lines = [line.strip() for line in block.splitlines()[1:]]
            found += [line.removeprefix("$ ") for line in lines if language == "sh" or line.startswith("$ ")]
        elif quoted.split()[0] in _PROGRAMS and " " in quoted:
            found.append(quoted)
        elif quoted.split()[0] in COMMANDS and " -" in quoted:
            found.append(f"cdc-platform {quoted}")
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in found))


def is_run(command: str) -> bool:
    """Whether it runs here."""
    return command not in NOT_RUN and not _OF_A_CLUSTER.match(command)


def test_what_is_not_run_is_on_a_page() -> None:
    """No reason is left over; and of both pages there is something to run."""
    every = {page: commands(page) for page in ("stores.md", "executors.md")}
    assert {*NOT_RUN} <= {command for some in every.values() for command in some}
    assert [page for page, some in every.items() if not any(map(is_run, some))] == []


@pytest.mark.parametrize("page", ["stores.md", "executors.md"])
def test_the_commands_of_a_page_run(s3: S3, tmp_path: Path, page: str) -> None:
    """One after the other in one shell's folder, on the home that is named, in a store on loopback."""
    address = s3.bucket()
    (tmp_path / "node.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, HOME_VARIABLE: f"{address}/prefix"}
    words = {"s3://bucket": address, "FROM": f"{address}/prefix", "TO": f"{address}/copy"}
    ran = [command for command in commands(page) if is_run(command)]
    typed = [re.sub("|".join(rf"\b{each}\b" for each in words), lambda found: words[found[0]], line) for line in ran]
    done = subprocess.run(
        ["sh", "-ex"],
        input="\n".join(typed),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
