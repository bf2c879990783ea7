"""What Dagster's parts keep of its SQLite databases from one look to the next: engines, and scripts of migrations.

Dagster makes them anew for each statement and each tick of a sensor, which is most of what an idle platform does, and
a fifth of the CPU of runs of small joins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

_MOST_ENGINES = 64
"""Each run has a database of its own."""
_KEPT_CONNECTIONS = 2
"""To a database; who needs more at once gets them, and they are closed after use."""


def keep_open() -> None:
    """Keep, in this process, what does not change while it runs, and connections to what its daemons ask all the time.

    Those of runs' events are made for each use, as before: Dagster disposes of their engines itself.
    """
    _keep_engines()
    _keep_migrations()


def _keep_engines() -> None:
    """One engine to a database, with the statements that it has compiled.

    Those of ticks and runs keep their connections too: whoever closes the last one of a database has its log written
    into it, and every tick of a sensor asks a dozen times.
    """
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage
    from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.pool import NullPool, Pool, QueuePool

    @lru_cache(maxsize=_MOST_ENGINES)
    def known(address: str, pool: type[Pool], options: tuple[tuple[str, Any], ...]) -> Engine:
        few = {"pool_size": _KEPT_CONNECTIONS, "max_overflow": -1} if pool is QueuePool else {}
        return create_engine(address, poolclass=pool, connect_args=dict(options), **few)

    def keeping(pool: type[Pool]) -> Callable[..., Engine]:
        def kept(address: str, *, poolclass: object = None, **options: Any) -> Engine:
            plain = options.keys() <= {"connect_args"} and poolclass is NullPool
            if not plain:
                return create_engine(address, poolclass=poolclass, **options)
            return known(address, pool, tuple(sorted(options.get("connect_args", {}).items())))

        return kept

    pools: dict[type[Pool], tuple[Any, ...]] = {
        NullPool: (sqlite_event_log,),
        QueuePool: (sqlite_run_storage, sqlite_schedule_storage),
    }
    for pool, modules in pools.items():
        for module in modules:
            module.create_engine = keeping(pool)


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
