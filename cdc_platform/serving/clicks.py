"""Who clicks: runs and backfills that are asked for in the UI get the user whom a proxy before it names, else unknown.

A name in a request proves nothing by itself. So it is taken only where a setting says in which header the proxy puts
it, and only of requests that came by the proxy's address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagster import DagsterInstance, DagsterRun, QueuedRunCoordinator
from dagster._core.instance.ref import InstanceRef
from dagster._core.run_coordinator.base import SubmitRunContext
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._serdes import ConfigurableClassData
from starlette.requests import HTTPConnection

from cdc_platform.dagster_home import USER_TAG
from cdc_platform.lake.envelope import UNKNOWN
from cdc_platform.serving.addresses import Names

Headers = Mapping[str, Sequence[str]]
"""The values of each header of a request, by its name in lower case."""
Who = Callable[[Headers], str]
_LONGEST = 200


def who_asks(names: Names, header: str) -> Who:
    """By which header (empty: none) a user is named in requests that come by the proxy of `names`."""
    by_proxy = names.public.hosts if names.public else frozenset()

    def who(headers: Headers) -> str:
        if not header or not {host.lower() for host in headers.get("host", ())} & by_proxy:
            return UNKNOWN
        # Where there are two, one is not the proxy's.
        (name,) = named if len(named := headers.get(header.lower(), ())) == 1 else ("",)
        return name if name.strip() and name.isprintable() and len(name) <= _LONGEST else UNKNOWN

    return who


def attributing(base_dir: str) -> DagsterInstance:
    """The instance of a DAGSTER_HOME, whose queue takes down who asks; another queue that its settings name stays."""
    ref = InstanceRef.from_dir(base_dir)
    queue = ref.run_coordinator_data
    if queue is not None and queue.class_name == QueuedRunCoordinator.__name__:
        ours = ConfigurableClassData(__name__, AttributedRuns.__name__, queue.config_yaml)
        ref = ref._replace(run_coordinator_data=ours)
    return DagsterInstance.from_ref(ref)


class Click(WorkspaceRequestContext):
    """A request to the UI, and who asks."""

    asks: str = UNKNOWN

    def get_viewer_tags(self) -> dict[str, str]:
        """What a backfill gets, and every run of it."""
        return {USER_TAG: self.asks}


class Clicks(WorkspaceProcessContext):
    """The UI's workspace; its requests know who asks."""

    def __init__(self, who: Who, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._who = who

    def create_request_context(self, source: object | None = None) -> WorkspaceRequestContext:
        """The context of a request, which Dagster's webserver hands in."""
        made = super().create_request_context(source)
        click = Click(made.instance, made.get_current_workspace(), self, self.version, source, made.read_only)
        given: dict[str, list[str]] = {}
        if isinstance(source, HTTPConnection):
            for name, value in source.headers.items():
                given.setdefault(name.lower(), []).append(value)
        click.asks = self._who(given)
        return click


class AttributedRuns(QueuedRunCoordinator):
    """The queue of runs; one that was asked for in the UI has the user as a tag, whatever tags it came with."""

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Put a run into the queue."""
        if isinstance(context.workspace, Click):
            self._instance.add_run_tags(context.dagster_run.run_id, {USER_TAG: context.workspace.asks})
        return super().submit_run(context)
