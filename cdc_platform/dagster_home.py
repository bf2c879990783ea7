"""DAGSTER_HOME of a home, with the project's instance settings in it.

The settings ship with the package, in a clone and in a wheel. This module does not import Dagster.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import HomeLocation, make_private_folder
from cdc_platform.storage import atomic

PACKAGES_FOLDER = Path(__file__).resolve().parent.parent
"""The folder that contains the project's packages: a clone, or the folder where a wheel is installed."""
_PROJECT_FILES = Path(__file__).resolve().parent / "data" / "dagster"
CLOCK_VARIABLE = "CDC_PLATFORM_CLOCK"
OWNERS_VARIABLE = "CDC_PLATFORM_OWNERS"
"""The owners of assets, as a JSON list. `up` sets it for its services.

They import the definitions in a process that they fork from, which must not connect to a store: its client's threads do
not survive a fork.
"""
"""Stops the clock of Dagster's processes at a time, as `--clock` does for a command."""
USER_TAG = "cdc_platform/user"
"""The run tag that names the user who requested the run in the UI."""
INSTANCE_FILE = "dagster.yaml"
_EARLIER_INSTANCE_FILES = frozenset(
    {
        "3d04f06ed567faf92df6fb31bc444af050016e52400e81854b65744f13ace84f",
        "be85769010928d4612729ec97dd4e728f16dae6040b95275d740580e3c28389d",
        "728de0d3d748b2cf55d16c44dfe04a367d26f07d704461f826bef98d0ffa396c",
        "2861aa24c6297b4834c9f4a076224dd1f2ce2edebeb20a651b6c57f097160bd5",
    }
)
"""The SHA-256 of the settings that earlier versions shipped. A home with one of them gets the new settings."""

POSTGRES_VARIABLES = (
    "DAGSTER_PG_HOST",
    "DAGSTER_PG_PORT",
    "DAGSTER_PG_USERNAME",
    "DAGSTER_PG_PASSWORD",
    "DAGSTER_PG_DB",
)
"""The environment variables with the address of Dagster's database, which the setting `dagster_storage` needs."""
_POSTGRES_STORAGE = """
storage:
  postgres:
    postgres_db:
      scheme: postgresql+psycopg2
      hostname: {env: DAGSTER_PG_HOST}
      port: {env: DAGSTER_PG_PORT}
      username: {env: DAGSTER_PG_USERNAME}
      password: {env: DAGSTER_PG_PASSWORD}
      db_name: {env: DAGSTER_PG_DB}
"""


def clock_from_environment() -> Clock:
    """Return the clock of Dagster's processes: the machine's, or one that `CLOCK_VARIABLE` stops.

    Raises:
        InputError: the variable is not a time, or has no zone.
    """
    stopped_at = os.environ.get(CLOCK_VARIABLE)
    return Clock(parse_time_us(stopped_at) if stopped_at else None)


def get_project_file(name: str) -> Path:
    """Return the path of a Dagster file that ships with the package. In a clone it links to the file at the root.

    Raises:
        EnvironmentProblem: the file is missing, so the installation is incomplete.
    """
    path = _PROJECT_FILES / name
    if not path.is_file():
        raise EnvironmentProblem(f"{path} is missing; install the program again")
    return path


def prepare_dagster_home(home: HomeLocation) -> Path:
    """Return the DAGSTER_HOME of `home`, and create it if needed. Settings that a person has changed stay.

    Raises:
        EnvironmentProblem: the home's settings select Postgres, and its library or an environment variable is missing.
    """
    folder = make_private_folder(home.dagster)
    settings = folder / INSTANCE_FILE
    shipped = get_project_file(INSTANCE_FILE).read_text(encoding="utf-8")
    uses_postgres = home.settings.dagster_storage == "postgres"
    if uses_postgres:
        _require_postgres()
    wanted = shipped + _POSTGRES_STORAGE if uses_postgres else shipped
    existing = settings.read_text(encoding="utf-8") if settings.exists() else None
    if existing is None or (existing != wanted and _is_ours(existing.removesuffix(_POSTGRES_STORAGE), shipped)):
        atomic.write_text_atomically(settings, wanted)
    return folder


def _is_ours(text: str, shipped: str) -> bool:
    """Return True for the settings that this or an earlier version shipped."""
    return text == shipped or hashlib.sha256(text.encode()).hexdigest() in _EARLIER_INSTANCE_FILES


def _require_postgres() -> None:
    if find_spec("dagster_postgres") is None:
        raise EnvironmentProblem(
            'dagster_storage is "postgres" in settings.toml, and dagster-postgres is not installed; install '
            "cdc-platform[postgres]"
        )
    if missing := [name for name in POSTGRES_VARIABLES if not os.environ.get(name)]:
        raise EnvironmentProblem(
            f'dagster_storage is "postgres" in settings.toml, and the environment lacks {", ".join(missing)}; set '
            "them to the address of the database"
        )
