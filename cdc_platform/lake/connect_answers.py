"""Waits until somebody listens at `$SPARK_REMOTE`, and ends with 0 if that Connect server then answers a query.

As `python -m cdc_platform.lake.connect_answers`: a process of its own, of which the server's keeper keeps nothing in
memory, and which imports its client while the server starts. How long it waits is for whoever started it to say.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any, cast

from cdc_platform.lake.server_file import REMOTE_VARIABLE, TOKEN_VARIABLE
from cdc_platform.lake.session import reach

_LOOK_SECONDS = 0.1


def answers(remote: str, token: str) -> bool:
    """Whether a server answers a query, once somebody listens there; nothing is asked of it again."""
    # Not through SparkSession.builder: it would make every later session of this process a remote one.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    _await_listener(remote)
    try:
        session = SparkSession.builder.remote(f"{remote}/;token={token}").create()
        cast("Any", session).client.set_retry_policies([])
        session.sql("SELECT 1").collect()
        session.stop()
    except PySparkException:
        return False
    return True


def _await_listener(remote: str) -> None:
    while True:
        with suppress(OSError):
            return reach(remote)
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(not answers(os.environ[REMOTE_VARIABLE], os.environ[TOKEN_VARIABLE]))
