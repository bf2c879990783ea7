"""Attribute runs and backfills requested in the UI to the user that a trusted proxy names, or without one to ours.

A header alone proves nothing. It counts only if a setting names it and the request came through the proxy's address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from dagster import DagsterInstance, DagsterRun

from cdc_platform.dagster_home import USER_TAG
from cdc_platform.delta import UNKNOWN_USER, get_machine_user
from cdc_platform.server.addresses import UiAddresses
from cdc_platform.server.auth import AsgiApplication, AsgiReceive, AsgiScope, AsgiSend, request_headers

Headers = Mapping[str, Sequence[str]]
"""The values of each header of a request, by its name in lower case."""
FindUser = Callable[[Headers], str]
_MAX_USER_LENGTH = 200
_user: ContextVar[str] = ContextVar("user of the current request to the UI", default=UNKNOWN_USER)


def user_finder(names: UiAddresses, header: str) -> FindUser:
    """Return a function that finds the user in a request's headers; with an empty `header` it finds none.

    Without a proxy the UI serves only this machine, and its token is readable only for the user that runs it.
    """
    if names.public is None:
        return lambda headers: get_machine_user()
    by_proxy = names.public.hosts

    def find_user(headers: Headers) -> str:
        if not header or not {host.lower() for host in headers.get("host", ())} & by_proxy:
            return UNKNOWN_USER
        # If the header comes twice, the client has sent one of the two.
        (name,) = values if len(values := headers.get(header.lower(), ())) == 1 else ("",)
        return name if name.strip() and name.isprintable() and len(name) <= _MAX_USER_LENGTH else UNKNOWN_USER

    return find_user


class UserOfRequest:
    """ASGI middleware that records the user of each request for the launches that the request makes."""

    def __init__(self, application: AsgiApplication, find_user: FindUser) -> None:
        self._application = application
        self._find_user = find_user

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Set the user in the context of this request. Its tasks and threads inherit it."""
        if scope["type"] != "lifespan":
            _user.set(self._find_user(request_headers(scope)))
        await self._application(scope, receive, send)


def tag_launches(instance: DagsterInstance) -> None:
    """Make `instance` tag each run and backfill with the user of the current request, whatever tags it already has.

    Every launch of the UI passes through these two methods, whatever run coordinator the settings name. The runs of a
    backfill inherit its tags.
    """
    submit_run, add_backfill = instance.submit_run, instance.add_backfill

    def submit_tagged_run(run_id: str, workspace: Any) -> DagsterRun:
        instance.add_run_tags(run_id, {USER_TAG: _user.get()})
        return submit_run(run_id, workspace)

    def add_tagged_backfill(partition_backfill: Any) -> None:
        tags = {**(partition_backfill.tags or {}), USER_TAG: _user.get()}
        add_backfill(partition_backfill._replace(tags=tags))

    instance.submit_run = submit_tagged_run
    instance.add_backfill = add_tagged_backfill
