"""Commands on the pages about stores and executors run here unchanged, or have a reason why not.

The commands of a cluster run in `test_spark_cluster_with_store`, which has one.
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
"""Commands that are not run here, and why."""
_CLUSTER_COMMANDS = re.compile(r"^(spark-class|export CDC_PLATFORM_)")


def commands(page: str) -> list[str]:
    """Return the commands of a page in order: lines of its blocks, and quoted text that begins with a program.

    Quoted commands of the platform without its name count, too, if they have an option.
    """
    text = (_DOCS / page).read_text(encoding="utf-8")
    result, pattern = [], r"^ *```((sh|console)\n.*?)^ *```$|(?<!`)`([^`\n]+)`(?!`)"
    for block, language, quoted in re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL):
        if language:
            lines = [line.strip() for line in block.splitlines()[1:]]
            result += [line.removeprefix("$ ") for line in lines if language == "sh" or line.startswith("$ ")]
        elif quoted.split()[0] in _PROGRAMS and " " in quoted:
            result.append(quoted)
        elif quoted.split()[0] in COMMANDS and " -" in quoted:
            result.append(f"cdc-platform {quoted}")
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in result))


def is_run(command: str) -> bool:
    """Return True if the command runs here."""
    return command not in NOT_RUN and not _CLUSTER_COMMANDS.match(command)


def test_commands_that_are_not_run_are_on_a_page() -> None:
    """Each reason belongs to a command of a page, and both pages have commands to run."""
    commands_by_page = {page: commands(page) for page in ("stores.md", "executors.md")}
    assert {*NOT_RUN} <= {command for page_commands in commands_by_page.values() for command in page_commands}
    assert [page for page, page_commands in commands_by_page.items() if not any(map(is_run, page_commands))] == []


@pytest.mark.parametrize("page", ["stores.md", "executors.md"])
def test_commands_of_a_page_run(s3: S3, tmp_path: Path, page: str) -> None:
    """They run one after the other in one folder, on the named home, in a store on loopback."""
    address = s3.bucket()
    (tmp_path / "node.json").write_text(node_text(1, 4, 2), encoding="utf-8")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": programs, HOME_VARIABLE: f"{address}/prefix"}
    words = {"s3://bucket": address, "FROM": f"{address}/prefix", "TO": f"{address}/copy"}
    to_run = [command for command in commands(page) if is_run(command)]
    lines = [re.sub("|".join(rf"\b{word}\b" for word in words), lambda match: words[match[0]], line) for line in to_run]
    done = subprocess.run(
        ["sh", "-ex"],
        input="\n".join(lines),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
