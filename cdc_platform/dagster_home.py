"""DAGSTER_HOME of a home: where Dagster keeps its runs and events, with the project's instance settings in it.

Knows two files at the project's root. Imports no Dagster.
"""

from __future__ import annotations

from pathlib import Path

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home import Home, owners_alone

_ROOT = Path(__file__).resolve().parent.parent
CLOCK_VARIABLE = "CDC_PLATFORM_CLOCK"
"""Stops the clock of Dagster's processes at a time, as `--clock` does for a command."""
INSTANCE_FILE = "dagster.yaml"


def project_file(name: str) -> Path:
    """A file at the project's root.

    Raises:
        EnvironmentProblem: it is not there: the package was installed without the project around it.
    """
    path = _ROOT / name
    if not path.is_file():
        raise EnvironmentProblem(f"{path} is missing; run from a clone of the project, installed with make .venv")
    return path


def dagster_home(home: Home) -> Path:
    """The DAGSTER_HOME of `home`, made if it is not there; settings that a person has changed in it are kept."""
    folder = owners_alone(home.dagster)
    settings = folder / INSTANCE_FILE
    if not settings.exists():
        drafts.write(settings, project_file(INSTANCE_FILE).read_text(encoding="utf-8"))
    return folder
