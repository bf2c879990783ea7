"""DAGSTER_HOME of a home: where Dagster keeps its runs and events, with the project's instance settings in it.

The settings come along in the package, be it a clone or installed from a wheel. Imports no Dagster.
"""

from __future__ import annotations

from pathlib import Path

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home import Home, owners_alone

PACKAGES = Path(__file__).resolve().parent.parent
"""The folder that holds the project's packages: a clone, or where a wheel was installed."""
_FILES = Path(__file__).resolve().parent / "data" / "dagster"
CLOCK_VARIABLE = "CDC_PLATFORM_CLOCK"
"""Stops the clock of Dagster's processes at a time, as `--clock` does for a command."""
USER_TAG = "cdc_platform/user"
"""The tag of a run that has who asked for it in the UI."""
INSTANCE_FILE = "dagster.yaml"


def project_file(name: str) -> Path:
    """A file for Dagster that comes with the package; in a clone it is a link to the one at the project's root.

    Raises:
        EnvironmentProblem: it is not there: the installation is not whole.
    """
    path = _FILES / name
    if not path.is_file():
        raise EnvironmentProblem(f"{path} is missing; install the program again")
    return path


def dagster_home(home: Home) -> Path:
    """The DAGSTER_HOME of `home`, made if it is not there; settings that a person has changed in it are kept."""
    folder = owners_alone(home.dagster)
    settings = folder / INSTANCE_FILE
    if not settings.exists():
        drafts.write(settings, project_file(INSTANCE_FILE).read_text(encoding="utf-8"))
    return folder
