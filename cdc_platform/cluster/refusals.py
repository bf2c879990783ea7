"""What a cluster can answer instead of rows, each as one line that says the mend; the one place that knows the
driver's exceptions.
"""

from __future__ import annotations

import errno
import socket
import ssl

from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ErrorMessage

from cdc_platform.errors import EnvironmentProblem, NotFound, PlatformError, StateError

DRIVER_ERRORS = (
    AuthenticationFailed,
    ConnectionException,
    ErrorMessage,
    InvalidRequest,
    NoHostAvailable,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
    OSError,
)
"""Everything that the driver raises of what a cluster did or did not do."""


class Unreachable(EnvironmentProblem):
    """A node, or all of them, could not be reached or did not answer; another try may go better."""

    code = "unreachable"


class Refused(EnvironmentProblem):
    """The cluster does not let us in: credentials or certificates."""

    code = "not-let-in"


class NoTable(NotFound):
    """This version of the server has no such table."""

    code = "no-such-table"


class NotGranted(StateError):
    """The role may not read a table. `grant` is the statement that lets it."""

    code = "not-granted"

    def __init__(self, table: str, role: str) -> None:
        self.grant = f"GRANT SELECT ON {table} TO {role}"
        super().__init__(f"role {role} may not read {table}; an administrator runs: {self.grant};")


def translated(error: BaseException, where: str, table: str, role: str) -> PlatformError:
    """The platform's error for what the driver raised when `table` was read at `where` (a cluster's or node's name)."""
    if isinstance(error, NoHostAvailable):
        # Where no node takes a connection the driver has their addresses alone.
        causes = error.errors.values() if isinstance(error.errors, dict) else ()
        inner = [cause for cause in causes if isinstance(cause, BaseException)]
        if not inner:
            return Unreachable(f"{where}: no node is up; look at the nodes, or name others with --contact")
        # All nodes were tried: what the first says is told, a refusal before a silence.
        inner.sort(key=lambda cause: not isinstance(cause, (AuthenticationFailed, Unauthorized, InvalidRequest)))
        return translated(inner[0], where, table, role)
    if isinstance(error, AuthenticationFailed):
        return Refused(f"{where}: user {role} was not let in; check the user and the password that are named for it")
    if isinstance(error, Unauthorized):
        return NotGranted(table, role)
    if isinstance(error, InvalidRequest):
        return NoTable(f"{where}: {table} cannot be read: {_first_line(error)}")
    if isinstance(error, Unavailable):
        return Unreachable(
            f"{where}: {table} needs {error.required_replicas} replicas and {error.alive_replicas} are up; "
            "start the nodes that are down, system_distributed has three replicas at most"
        )
    if isinstance(error, (ReadTimeout, OperationTimedOut, TimeoutError)):
        return Unreachable(
            f"{where}: no answer about {table} in time; try again, or give it more with --request-timeout"
        )
    if isinstance(error, ReadFailure):
        return Unreachable(f"{where}: replicas failed to read {table}; the server's log says why")
    if isinstance(error, OSError):
        return connecting(error, where)
    return Unreachable(f"{where}: {table} could not be read: {_first_line(error)}")


def connecting(error: OSError, where: str) -> PlatformError:
    """The platform's error for a connection to `where` (host:port) that did not come to be."""
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{where}: no such host is known; check the name in --contact")
    if isinstance(error, ssl.SSLCertVerificationError):
        mend = "name the CA with --tls-ca, or give --no-tls-host-names where certificates name no hosts"
        return Refused(f"{where}: its certificate is not accepted: {error.verify_message}; {mend}")
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "certificate required" in reason or "handshake failure" in reason:
            return Refused(f"{where}: it asks for a client's certificate; give --tls-cert and --tls-key")
        if "wrong version" in reason or "record layer" in reason:
            return Refused(f"{where}: it does not speak TLS; leave --tls out, or name its port for TLS")
        return Refused(f"{where}: TLS failed: {reason}")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{where}: no answer in time; is it the right address, and is a firewall in between?")
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(f"{where}: nothing listens there; check the port (CQL's is 9042, with TLS often 9142)")
    if isinstance(error, ConnectionError):
        return Unreachable(f"{where}: the connection was closed at once; does it want TLS? then add --tls")
    return Unreachable(f"{where}: {error.strerror or error}")


def _first_line(error: BaseException) -> str:
    """What the server said, without what the driver puts around it."""
    text = str(error).strip()
    if 'message="' in text:
        text = text.partition('message="')[2].rstrip('"')
    return (text.splitlines() or ["no reason given"])[0][:200]
