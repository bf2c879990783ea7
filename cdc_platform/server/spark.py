"""A Spark Connect server as a service of its own: `python -m cdc_platform.server.spark --file PATH`.

`up` starts Spark itself. Where the services run apart, this one writes the address and the token to a file, which
`CDC_PLATFORM_SPARK_SERVER` names for the others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from cdc_platform.errors import PlatformError
from cdc_platform.json_logs import configure_json_logs
from cdc_platform.processes import supervise
from cdc_platform.spark import LOG_VARIABLE, ConnectServer, find_java, get_jars
from cdc_platform.spark_server import ServerFile


@click.command()
@click.option("--file", "path", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1, 0 for any.")
def serve_spark(path: Path, port: int) -> None:
    """Run the server until a signal ends the process. Its log lies beside the file, as `.log`."""
    configure_json_logs()
    log = path.with_suffix(".log")
    os.environ[LOG_VARIABLE] = str(log)
    file, server = ServerFile(path), ConnectServer(port)
    file.withdraw()

    def start() -> None:
        server.start()
        file.publish(server.environment)

    try:
        find_java()
        get_jars()
        with supervise() as supervisor:
            supervisor.adopt("the Spark Connect server", log, server, start)
            supervisor.await_end()
    except PlatformError as error:
        sys.exit(str(error))
    finally:
        file.withdraw()


if __name__ == "__main__":
    serve_spark()
