"""DAGSTER_HOME of a home, with the project's instance settings in it.

The settings ship with the package, in a clone and in a wheel. The module imports no Dagster.
"""

from __future__ import annotations

from pathlib import Path

from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home import Home, make_private_folder
from cdc_platform.storage import atomic

PACKAGES_FOLDER = Path(__file__).resolve().parent.parent
"""The folder that holds the project's packages: a clone, or where a wheel was installed."""
_PROJECT_FILES = Path(__file__).resolve().parent / "data" / "dagster"
CLOCK_VARIABLE = "CDC_PLATFORM_CLOCK"
"""Stops the clock of Dagster's processes at a time, as `--clock` does for a command."""
USER_TAG = "cdc_platform/user"
"""The tag of a run that has who asked for it in the UI."""
INSTANCE_FILE = "dagster.yaml"


def get_project_file(name: str) -> Path:
    """A file for Dagster that comes with the package; in a clone it is a link to the one at the project's root.

    Raises:
        EnvironmentProblem: it is not there: the installation is not whole.
    """
    path = _PROJECT_FILES / name
    if not path.is_file():
        raise EnvironmentProblem(f"{path} is missing; install the program again")
    return path


def prepare_dagster_home(home: Home) -> Path:
    """The DAGSTER_HOME of `home`, made if it is not there; settings that a person has changed in it are kept."""
    folder = make_private_folder(home.dagster)
    settings = folder / INSTANCE_FILE
    if not settings.exists():
        atomic.write_text_atomically(settings, get_project_file(INSTANCE_FILE).read_text(encoding="utf-8"))
    return folder
