"""The examples of services: units of systemd, a Containerfile and values for Dagster's Helm chart."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # pyrefly: ignore[untyped-import]
from dagster._cli.api import grpc_command
from dagster._daemon.cli import run_command
from support.waiting import await_true
from support.worlds.services import Services

from cdc_platform import __version__, dagster_home
from cdc_platform.dagster_home import POSTGRES_VARIABLES
from cdc_platform.server import spark, ui
from cdc_platform.spark_server import ServerFile

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "services"
PAGE = (ROOT / "docs" / "services.md").read_text(encoding="utf-8")
UNITS = sorted(path.name for path in EXAMPLES.glob("cdc-platform-*.*"))
SERVICES = [name for name in UNITS if name.endswith(".service")]
PYTHON = "/opt/cdc-platform/bin/python"
COMMANDS: Mapping[str, click.Command] = {
    "code_server": grpc_command,
    "daemon": run_command,
    "ui": ui.serve_ui,
    "spark": spark.serve_spark,
}
WARM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_INSTRUCTIONS = {"FROM", "SHELL", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD"}


def read_unit(name: str) -> dict[str, list[str]]:
    """Return the values of each key of a unit."""
    values: dict[str, list[str]] = {}
    for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


def read_command(name: str) -> tuple[str, list[str]]:
    """Return the module that a unit runs, without its package, and its arguments."""
    (line,) = read_unit(name)["ExecStart"]
    python, minus_m, module, *arguments = shlex.split(line)
    assert (python, minus_m) == (PYTHON, "-m")
    package, _, short = module.rpartition(".")
    assert package == "cdc_platform.server"
    return short, arguments


def option_names(command: click.Command) -> set[str]:
    """Return the names of a command's options."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def verify(folder: Path) -> str:
    """Return the output of `systemd-analyze verify` about the units of a folder."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing; Debian: apt-get install systemd")
    units = [str(path) for path in sorted(folder.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if "cdc-platform" in line)


@pytest.mark.processes
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """All units are verified together, with this Python as the program; a misspelt key would be reported."""
    for name in UNITS:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(PYTHON, sys.executable), encoding="utf-8")
    assert verify(tmp_path) == ""
    misspelt = tmp_path / "cdc-platform-daemon.service"
    misspelt.write_text(misspelt.read_text(encoding="utf-8").replace("Restart=", "Restrat="), encoding="utf-8")
    assert "Restrat" in verify(tmp_path)


@pytest.mark.spark
@pytest.mark.long("a JVM's start, and its end")
def test_spark_publishes_its_address_while_it_runs(tmp_path: Path) -> None:
    """The file has an address and a token that only its owner can read, until the service is asked to end."""
    file = ServerFile(tmp_path / "spark.env")
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_platform.server.spark", "--file", str(file.path)], env={**os.environ, **WARM}
    )

    def published() -> bool:
        assert process.poll() is None
        return file.path.exists() and "SPARK_REMOTE" in file.path.read_text(encoding="utf-8")

    try:
        await_true(published, 180, "the start of Spark")
        assert file.read()["SPARK_REMOTE"].startswith("sc://localhost:")
        assert file.path.stat().st_mode & 0o077 == 0
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0
    with pytest.raises(ConnectionRefusedError):
        file.read()


@pytest.mark.parametrize("name", SERVICES)
def test_unit_runs_an_existing_command(name: str) -> None:
    """Its options exist; it runs as an ordinary user, with the shared environment, and restarts after its end."""
    module, arguments = read_command(name)
    options = {word for word in arguments if word.startswith("-")}
    assert options <= option_names(COMMANDS[module])
    required = {parameter.name for parameter in COMMANDS[module].params if parameter.required}
    assert required <= {parameter.name for parameter in COMMANDS[module].params if options & set(parameter.opts)}
    values = read_unit(name)
    assert values["User"] == ["cdc-platform"]
    assert values["EnvironmentFile"] == ["/etc/cdc-platform/environment"]
    assert values["Restart"] == ["always"]


def test_units_run_what_the_tests_run(tmp_path: Path) -> None:
    """The services that are tested with a real Postgres have the options of the units."""
    services = Services(tmp_path / "home", tmp_path, {})
    started: dict[str, list[str]] = {}

    def record(name: str, module: str, *arguments: str, **_: Any) -> None:
        del name
        started[module] = [word for word in arguments if word.startswith("-")]

    services._start = record
    services.start_code_server()
    services.start_daemon()
    services.start_ui("ui")
    units = dict(map(read_command, SERVICES))
    assert started == {name: [word for word in units[name] if word.startswith("-")] for name in started}
    assert set(units) - set(started) == {"spark"}


def test_files_name_each_other() -> None:
    """The workspace has the code server's socket, the UI gets its socket as descriptor 3, and Spark's file is known."""
    workspace = json.loads((EXAMPLES / "workspace.yaml").read_text(encoding="utf-8"))
    (location,) = workspace["load_from"]
    assert location["grpc_server"]["socket"] in read_command("cdc-platform-code.service")[1]
    assert read_unit("cdc-platform-ui.socket")["ListenStream"] == ["127.0.0.1:3000"]
    assert read_command("cdc-platform-ui.service")[1][:2] == ["--listening", "3"]
    lines = (EXAMPLES / "environment").read_text(encoding="utf-8").splitlines()
    environment = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert set(POSTGRES_VARIABLES) <= environment.keys()
    assert environment["DAGSTER_PG_PASSWORD"] == ""
    assert environment["DAGSTER_HOME"] == f"{environment['CDC_PLATFORM_HOME']}/dagster"
    assert environment["CDC_PLATFORM_SPARK_SERVER"] in read_command("cdc-platform-spark.service")[1]
    known = json.loads((ROOT / "tests/data/contracts/names.json").read_text(encoding="utf-8"))
    assert {name for name in environment if name.startswith("CDC_")} <= set(json.dumps(known).split('"'))
    assert all(f"`{path.name}`" in PAGE or path.stem.startswith("cdc-platform-") for path in EXAMPLES.iterdir())


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (EXAMPLES / "Containerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_containerfile_follows_the_rules() -> None:
    """Images and packages are pinned, layers have no caches, no root, and commands have no shell."""
    commands = instructions()
    assert {word for word, _ in commands} <= _INSTRUCTIONS
    assert commands[0][0] == "FROM"
    assert re.fullmatch(r"docker\.io/library/python:3\.11\.\d+-slim-bookworm", commands[0][1])
    for word, rest in commands:
        if word in ("SHELL", "ENTRYPOINT", "CMD"):
            assert all(isinstance(part, str) for part in json.loads(rest))
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
            packages = rest.partition("--no-install-recommends")[2].partition("&&")[0].split()
            assert packages
            assert all("=" in package for package in packages)
        for part in rest.split("&&"):
            assert "pip install" not in part or {"--no-cache-dir", "--no-deps"} <= set(part.split())
    (user,) = [rest for word, rest in commands if word == "USER"]
    assert user.isdecimal()
    assert int(user) > 0
    assert f"cdc_platform-{__version__}-" in dict(commands)["COPY"]
    _, _, module, *arguments = json.loads(dict(commands)["CMD"])
    assert module == "cdc_platform.server.code_server"
    assert {word for word in arguments if word.startswith("-")} <= option_names(grpc_command)


def chart_values() -> dict[str, Any]:
    """Return the values for Dagster's chart."""
    return yaml.safe_load((EXAMPLES / "helm-values.yaml").read_text(encoding="utf-8"))


def test_chart_runs_this_release() -> None:
    """The chart's version is Dagster's, the arguments are those of `dagster api grpc`, and no secret is in the file."""
    values = chart_values()
    (deployment,) = values["dagster-user-deployments"]["deployments"]
    assert deployment["image"]["tag"] == __version__
    assert {word for word in deployment["dagsterApiGrpcArgs"] if word.startswith("-")} <= option_names(grpc_command)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (dagster,) = [word for word in project["project"]["dependencies"] if word.startswith("dagster==")]
    assert f"--version {dagster.removeprefix('dagster==')} " in PAGE
    assert "postgresqlPassword" not in values["postgresql"]
    secrets = [values["global"]["postgresqlSecretName"], *(secret["name"] for secret in deployment["envSecrets"])]
    assert all(f"create secret generic {name} " in PAGE for name in secrets)


def to_chart_names(settings: Any) -> Any:
    """Return settings with the chart's names, such as `maxRetries` for `max_retries`."""
    if not isinstance(settings, dict):
        return settings
    return {
        re.sub("_(.)", lambda match: match[1].upper(), name): to_chart_names(value) for name, value in settings.items()
    }


def test_chart_has_the_settings_of_the_instance() -> None:
    """The values have each section of dagster.yaml, because the chart's own limit neither pools nor runtimes."""
    shipped = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8"))
    wanted = to_chart_names(shipped)
    values = chart_values()
    daemon = values["dagsterDaemon"]
    coordinator = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    for kind in ("sensor", "schedule"):  # the chart requires a value, and this one is Dagster's default
        assert values["retention"][kind]["purgeAfterDays"].pop("started") == -1
    for name in ("concurrency", "retention"):  # the chart leaves them out unless they are enabled
        assert values[name].pop("enabled") is True
    assert {
        "telemetry": values["telemetry"],
        "nux": values["additionalInstanceConfig"]["nux"],
        "concurrency": values["concurrency"],
        "retention": values["retention"],
        "runCoordinator": wanted["runCoordinator"] | {"config": coordinator},
        **{name: daemon[name] for name in ("runRetries", "runMonitoring", "sensors")},
    } == wanted
    # The chart would otherwise leave the driver to SQLAlchemy, whose default is another one.
    assert f"scheme: {values['postgresql']['postgresqlScheme']}\n" in dagster_home._POSTGRES_STORAGE
