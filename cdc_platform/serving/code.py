"""Dagster's code server, as `python -m cdc_platform.serving.code` with the options of `dagster api grpc`.

A run is a process that starts by importing this module again: so runs end with `up` as the code server does.
"""

from __future__ import annotations

from cdc_platform.lease import bind

bind()

if __name__ == "__main__":
    from dagster._cli.api import grpc_command

    grpc_command()
