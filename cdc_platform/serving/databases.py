"""What Dagster's parts keep of its SQLite databases from one look to the next: engines, and scripts of migrations.

Dagster makes them anew for each statement and each tick of a sensor, which is most of what an idle platform does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_MOST_ENGINES = 64
"""Each run has a database of its own."""


def keep_open(*, connections: bool = False) -> None:
    """Keep, in this process, what does not change while it runs.

    With `connections` one to each database as well, for a process that ends with its work: whoever closes the last
    one of a database writes its journal back, which without is done at each statement. A process that stays must not:
    databases are removed while it runs.
    """
    _keep_engines(connections)
    _keep_migrations()


def _keep_engines(connections: bool) -> None:
    """One engine to a database, with the statements that it has compiled."""
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage
    from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.pool import NullPool, QueuePool

    @lru_cache(maxsize=_MOST_ENGINES)
    def known(address: str, options: tuple[tuple[str, Any], ...]) -> Engine:
        if not connections:
            return create_engine(address, poolclass=NullPool, connect_args=dict(options))
        # Whichever thread comes next may have the one that is kept; others at the same time are closed after use.
        shared = {**dict(options), "check_same_thread": False}
        return create_engine(address, poolclass=QueuePool, pool_size=1, max_overflow=-1, connect_args=shared)

    def kept(address: str, *, poolclass: object = None, **options: Any) -> Engine:
        plain = options.keys() <= {"connect_args"} and poolclass is NullPool
        if not plain:
            return create_engine(address, poolclass=poolclass, **options)
        return known(address, tuple(sorted(options.get("connect_args", {}).items())))

    modules: tuple[Any, ...] = (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage)
    for module in modules:
        module.create_engine = kept


def _keep_migrations() -> None:
    """The scripts of a folder, read and ordered once: each instance asks of three databases whether they are newest."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    read, known = ScriptDirectory.from_config, dict[str | None, ScriptDirectory]()

    def kept(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location")
        if location not in known:
            known[location] = read(config)
        return known[location]

    ScriptDirectory.from_config = kept
