"""Translate the driver's exceptions into the platform's errors, each one line with a remedy.

No other module knows the driver's exceptions.
"""

from __future__ import annotations

import errno
import re
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

_USER_REMEDY = "add the cluster again with --user-env and --password-env, or --credentials-file"
_MESSAGE = re.compile(r'message="(.*?)"?>?$', re.DOTALL)
_OTHER_HOST_NAME = 62
"""OpenSSL's verification code X509_V_ERR_HOSTNAME_MISMATCH; 64 is the one for addresses."""
_OTHER_ADDRESS = 64
_NOT_IN_FORCE = (9, 10)
"""OpenSSL's verification codes of a certificate that is not valid yet, and of one that has expired."""

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
"""Everything that the driver raises for a cluster's answer, or for its silence."""


class Unreachable(EnvironmentProblem):
    """One node, or every node, could not be reached or did not answer; a retry may succeed."""

    code = "unreachable"


class Refused(EnvironmentProblem):
    """The cluster rejects the credentials or certificates."""

    code = "not-let-in"


class NoTable(NotFound):
    """This version of the server has no such table."""

    code = "no-such-table"


class NotGranted(StateError):
    """The role may not read a table. `grant` is the statement that grants the permission."""

    code = "not-granted"

    def __init__(self, table: str, role: str | None) -> None:
        self.grant = f"GRANT SELECT ON {table} TO {role or 'ROLE'}"
        log_in = "" if role else f" {_USER_REMEDY}, and"
        super().__init__(f"{describe_role(role)} may not read {table};{log_in} an administrator runs: {self.grant};")


def describe_role(role: str | None) -> str:
    """Return how a message names the role; None is a connection without a user."""
    return f"role {role}" if role else "a connection without a user"


def translate_error(error: BaseException, where: str, table: str, role: str | None) -> PlatformError:
    """Return the platform's error for what the driver raised while reading `table` at `where` (a cluster or a node).

    `role` is None if no user is configured.
    """
    if isinstance(error, NoHostAvailable):
        # If no node accepts a connection, the driver has only their addresses.
        causes = error.errors.values() if isinstance(error.errors, dict) else ()
        inner = [cause for cause in causes if isinstance(cause, BaseException)]
        if not inner:
            return Unreachable(f"{where}: no node is up; check the nodes, or name others with --contact")
        # All nodes were tried: report the first one's error, with a refusal before a timeout.
        inner.sort(key=lambda cause: not isinstance(cause, (AuthenticationFailed, Unauthorized, InvalidRequest)))
        return translate_error(inner[0], where, table, role)
    if isinstance(error, AuthenticationFailed):
        if role is None:
            return Refused(f"{where}: the cluster requires a user, and none is configured; {_USER_REMEDY}")
        return Refused(f"{where}: user {role} was rejected; check its user and password")
    if isinstance(error, Unauthorized):
        return NotGranted(table, role)
    if isinstance(error, InvalidRequest):
        return NoTable(f"{where}: {table} cannot be read: {server_message(error)}")
    if isinstance(error, Unavailable):
        why = ", system_distributed has three replicas at most" if _keyspace(table) == "system_distributed" else ""
        return Unreachable(
            f"{where}: {table} needs {error.required_replicas} replicas and {error.alive_replicas} are up; "
            f"start the nodes that are down{why}"
        )
    if isinstance(error, (ReadTimeout, OperationTimedOut, TimeoutError)):
        return Unreachable(f"{where}: no response for {table} in time; try again, or raise --request-timeout")
    if isinstance(error, ReadFailure):
        return Unreachable(f"{where}: replicas failed to read {table}; the server's log says why")
    if isinstance(error, OSError):
        return translate_connect_error(error, where)
    return Unreachable(f"{where}: {table} could not be read: {server_message(error)}")


def translate_connect_error(error: OSError, where: str) -> PlatformError:
    """Return the platform's error for a connection to `where` (host:port) that failed."""
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{where}: unknown host; check the name in --contact")
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refused(f"{where}: its certificate was rejected: {error.verify_message}; {_certificate_remedy(error)}")
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "certificate required" in reason or "handshake failure" in reason:
            return Refused(f"{where}: it requires a client certificate; pass --tls-cert and --tls-key")
        if "wrong version" in reason or "record layer" in reason:
            return Refused(f"{where}: it does not use TLS; omit --tls, or name its TLS port")
        return Refused(f"{where}: TLS failed: {reason}")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{where}: no response in time; check the address, and firewalls in between")
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(
            f"{where}: nothing listens on that port; check the port (CQL's is 9042, with TLS often 9142)"
        )
    if isinstance(error, ConnectionError):
        return Unreachable(f"{where}: the connection was closed immediately; if the node uses TLS, add --tls")
    return Unreachable(f"{where}: {error.strerror or error}")


def _certificate_remedy(error: ssl.SSLCertVerificationError) -> str:
    """Return the remedy that fits the reason for which a server's certificate was rejected."""
    if error.verify_code in (_OTHER_HOST_NAME, _OTHER_ADDRESS):
        return "use the certificate's host name in --contact, or pass --no-tls-hostname-check"
    if error.verify_code in _NOT_IN_FORCE:
        return "renew the node's certificate, or correct this machine's clock"
    return "pass its CA with --tls-ca"


def _keyspace(table: str) -> str:
    """Return the keyspace of a table's name as CQL has it."""
    return table[1:].partition('"')[0] if table.startswith('"') else table.partition(".")[0]


def server_message(error: BaseException) -> str:
    """Return the first line of the server's own message, without the driver's wrapping."""
    text = str(error).strip()
    message = _MESSAGE.search(text)
    if message is not None:
        text = message[1]
    return (text.strip().splitlines() or ["no reason given"])[0][:200]
