"""Wait until a server listens at `$SPARK_REMOTE`, and exit with 0 if it answers a query.

`python -m` runs this module as a process of its own, so that the server's parent loads no client and the client's
import overlaps the server's start. The caller limits the time.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any, cast

from cdc_platform.spark.session import assert_listening
from cdc_platform.spark_server import REMOTE_VARIABLE, TOKEN_VARIABLE

_POLL_SECONDS = 0.1


def is_answering(remote: str, token: str) -> bool:
    """Wait until the server listens, and return True if it answers a query; make one attempt only."""
    # SparkSession.builder would make every later session of this process a remote one.
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession

    _wait_for_listener(remote)
    try:
        session = SparkSession.builder.remote(f"{remote}/;token={token}").create()
        cast("Any", session).client.set_retry_policies([])
        session.sql("SELECT 1").collect()
        session.stop()
    except PySparkException:
        return False
    return True


def _wait_for_listener(remote: str) -> None:
    while True:
        with suppress(OSError):
            return assert_listening(remote)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(not is_answering(os.environ[REMOTE_VARIABLE], os.environ[TOKEN_VARIABLE]))
