"""Record the archive of the JVM's classes before the tests start theirs; `python -m` this does it where there is none.

Each JVM that begins without it spends some seconds of CPU more, and each that ends writes one of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from support.spark.core import core

from cdc_platform.lake.lake import Lake
from cdc_platform.lake.session import java_options, spark_session

_SECONDS = 240


def main() -> None:
    """Do once what most tests do on Spark: what ends afterwards writes down the classes that it took."""
    with tempfile.TemporaryDirectory(prefix="cdc-classes-") as folder:
        if "ArchiveClassesAtExit" not in java_options(Path(folder), heavy=False):
            return
        session = spark_session("the archive of classes")
        core(session, Lake(Path(folder) / "lake"))
        jvm: Any = session.sparkContext._gateway
        session.stop()
        jvm.proc.stdin.close()  # at the end of which it ends, and writes
        jvm.proc.wait(_SECONDS)


if __name__ == "__main__":
    main()
