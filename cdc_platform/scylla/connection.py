"""How to reach a cluster: contact points, where its secrets are, TLS, and limits of every read.

It is stored in a file, which names where user and password are and does not hold them. It does not import the
driver.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from cdc_platform.errors import EnvironmentProblem, InputError
from cdc_platform.storage import read_user_bytes

if TYPE_CHECKING:
    from cdc_platform.scylla.column_rules import TableRules

DEFAULT_PORT = 9042
_MAX_PEM_BYTES, _MAX_CREDENTIALS_BYTES = 16 << 20, 1 << 20
_CONTACT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


ReadConsistency = Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "LOCAL_ONE"]
MAX_RATE = 100_000_000


class Connection(BaseModel):
    """How to connect to a cluster, and how to read rows from it. Times in seconds; `contacts` are `host:port`.

    User and password come from two environment variables, from two files, or from one file with both; without any of
    them the session has no login. `addresses` maps a node's own address to the `host` or `host:port` at which this
    client reaches it. Other nodes listen at the port of the contact point with their address, else at that of the first
    contact point. Rows are read at `consistency`, by default as `ScyllaSession.log_consistency` says, at no more than
    `rows_per_second` and `requests_per_second`. With `decode_attributes` the attributes of Alternator tables are stored
    as JSON, not as the cluster's blobs; `attribute_types` declares some, as `keyspace.table.name=TYPE`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    contacts: tuple[str, ...] = Field(min_length=1)
    user_env: str | None = None
    password_env: str | None = None
    credentials_file: str | None = None
    user_file: str | None = None
    password_file: str | None = None
    addresses: dict[str, str] = Field(default_factory=dict)
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password_file: str | None = None
    tls_host_names: bool = True
    datacenter: str | None = None
    connect_timeout: float = Field(default=5.0, gt=0, le=120)
    request_timeout: float = Field(default=10.0, gt=0, le=600)
    page_rows: int = Field(default=5_000, ge=1, le=100_000)
    consistency: ReadConsistency | None = None
    rows_per_second: int | None = Field(default=None, ge=1, le=MAX_RATE)
    requests_per_second: int | None = Field(default=None, ge=1, le=MAX_RATE)
    left_out: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    hash_key_file: str | None = None
    hash_key_check: str | None = None
    decode_attributes: bool = False
    attribute_types: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Return a hash of all fields, `addresses` included."""
        return hash(self.model_dump_json())

    @property
    def column_rules(self) -> TableRules:
        """Return which columns are left out or hashed.

        Raises:
            InputError: a rule is invalid.
        """
        from cdc_platform.scylla.column_rules import parse_rules

        return parse_rules(
            self.left_out,
            self.hashed,
            self.hash_key_file,
            self.hash_key_check,
            decode_attributes=self.decode_attributes,
            attribute_types=self.attribute_types,
        )

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Return the contact points as (host, port)."""
        return [parse_contact(contact) for contact in self.contacts]

    @property
    def port(self) -> int:
        """Return the port of nodes for which no other is given."""
        return self.endpoints[0][1]

    @property
    def stays_local(self) -> bool:
        """Return True if rows may be read in the local datacenter only, since the consistency holds only there."""
        return self.datacenter is not None and (self.consistency or "LOCAL_QUORUM").startswith("LOCAL_")

    def endpoint(self, node: str) -> tuple[str, int]:
        """Return the host and port at which this client reaches the node with an address of its own."""
        mapped = self.addresses.get(node)
        if mapped is not None:
            return parse_contact(mapped, self.port)
        return node, dict(self.endpoints).get(node, self.port)

    def divided(self, readers: int) -> Connection:
        """Return this connection with the share of the rates that one of several concurrent readers has."""
        rates = {name: getattr(self, name) for name in ("rows_per_second", "requests_per_second")}
        return self.model_copy(
            update={name: max(1, rate // max(1, readers)) for name, rate in rates.items() if rate is not None}
        )


@dataclass(frozen=True)
class Credentials:
    """A user and its password; the password is excluded from the object's repr."""

    user: str
    password: str = field(repr=False)


def validate_connection(connection: Connection) -> Connection:
    """Return the connection if its parts are consistent.

    Raises:
        InputError: a contact point is malformed, ports differ, or half of a pair is missing.
    """
    _assert_one_port_per_host(connection)
    for node, address in connection.addresses.items():
        try:
            parse_contact(node if ":" not in node else f"[{node}]")
            parse_contact(address)
        except InputError as error:
            raise InputError(f"--address {node}={address}: {error}") from None
    if (connection.user_env is None) != (connection.password_env is None):
        raise InputError(
            "--user-env and --password-env must be given together, each with the name of an environment variable"
        )
    if (connection.user_file is None) != (connection.password_file is None):
        raise InputError("--user-file and --password-file must be given together, each a file with one value")
    given = [
        option
        for option, value in (
            ("--user-env", connection.user_env),
            ("--user-file", connection.user_file),
            ("--credentials-file", connection.credentials_file),
        )
        if value
    ]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} exclude each other; give one of them")
    for name in (connection.user_env, connection.password_env):
        if name is not None and not _VARIABLE.fullmatch(name):
            raise InputError(
                "--user-env and --password-env take the name of an environment variable, such as CDC_PASSWORD, "
                "not the secret itself"
            )
    if (connection.tls_cert is None) != (connection.tls_key is None):
        raise InputError("--tls-cert and --tls-key must be given together: a client certificate and its key")
    if connection.tls_key_password_file is not None and connection.tls_key is None:
        raise InputError("--tls-key-password-file is the password of a client key; add --tls-cert and --tls-key")
    if not connection.tls and (connection.tls_ca or connection.tls_cert or not connection.tls_host_names):
        raise InputError("TLS options are given, but TLS is off; add --tls")
    _ = connection.column_rules
    for option, text in (
        ("--datacenter", connection.datacenter),
        ("--credentials-file", connection.credentials_file),
        ("--user-file", connection.user_file),
        ("--password-file", connection.password_file),
        ("--tls-ca", connection.tls_ca),
        ("--tls-cert", connection.tls_cert),
        ("--tls-key", connection.tls_key),
        ("--tls-key-password-file", connection.tls_key_password_file),
        ("--hash-key-file", connection.hash_key_file),
    ):
        if text is not None and not (text.strip() and text.isprintable()):
            raise InputError(
                f"{option} {text!r} is empty or not printable; use printable characters, or omit the option"
            )
    return connection


def _assert_one_port_per_host(connection: Connection) -> None:
    hosts = [host for host, _ in connection.endpoints]
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice and len(set(connection.endpoints)) != len(set(hosts)):
        raise InputError(
            f"contact points with different ports at {twice[0]}; name nodes behind one address with --address "
            "NODE=HOST:PORT"
        )


def format_contact(address: str, port: int) -> str:
    """Return a node's address and port as a contact point, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def parse_contact(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Return a contact point as (host, port).

    Raises:
        InputError: the text is not `HOST:PORT`.
    """
    match = _CONTACT.fullmatch(text)
    port = int(match["port"] or default_port) if match else 0
    if match is None and "@" in text:
        # The part before the sign may be a password.
        raise InputError(
            f"...@{text.rpartition('@')[2]!r} is no contact point; write HOST:PORT, and pass user and password"
            " with --user-env and --password-env or --credentials-file"
        )
    if match is None or not 1 <= port <= 65_535:
        raise InputError(f"{text!r} is no contact point; write HOST:PORT, as in 10.0.0.1:9042")
    return match["host"].strip("[]"), port


def resolve_credentials(connection: Connection) -> Credentials | None:
    """Return the user and password as this process finds them now; None if no login is configured.

    Raises:
        EnvironmentProblem: a variable is not set, or the file is missing, readable by others, or malformed.
    """
    if connection.credentials_file is not None:
        return _read_credentials_file(Path(connection.credentials_file).expanduser())
    if connection.user_file is not None and connection.password_file is not None:
        return Credentials(
            _read_secret_file(connection.user_file, "--user-file"),
            _read_secret_file(connection.password_file, "--password-file"),
        )
    if connection.user_env is None or connection.password_env is None:
        return None
    return Credentials(_read_variable(connection.user_env), _read_variable(connection.password_env))


def create_tls_context(connection: Connection) -> ssl.SSLContext | None:
    """Return the TLS context of a connection; None if TLS is off.

    Raises:
        EnvironmentProblem: a certificate or key is missing or damaged.
    """
    if not connection.tls:
        return None
    named = [file for file in (connection.tls_ca, connection.tls_cert, connection.tls_key) if file]
    password_file = connection.tls_key_password_file
    password = None if password_file is None else _read_secret_file(password_file, "--tls-key-password-file")
    try:
        for file in named:
            _assert_regular_file(Path(file))
        context = ssl.create_default_context(cafile=connection.tls_ca)
        context.check_hostname = connection.tls_host_names
        if connection.tls_cert:
            context.load_cert_chain(connection.tls_cert, connection.tls_key, password=password or _no_passphrase)
    except OSError as error:
        if password is not None and isinstance(error, ssl.SSLError):
            raise EnvironmentProblem(
                f"TLS: {connection.tls_key} does not open with the password in {password_file}; correct one of them"
            ) from None
        files = ", ".join(named) or "the system certificates"
        raise EnvironmentProblem(
            f"TLS: {files} cannot be used ({error.strerror or error}); name PEM files "
            "with --tls-ca, --tls-cert and --tls-key"
        ) from None
    return context


def _assert_regular_file(file: Path) -> None:
    """Raise unless a path is a regular file.

    OpenSSL reads to the end: a device has none, and a pipe waits for a writer.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_PEM_BYTES:
        raise EnvironmentProblem(
            f"TLS: {file} is no PEM file: not a regular file, or has more than {_MAX_PEM_BYTES >> 20} MiB; name another"
        )


def _no_passphrase() -> str:
    raise EnvironmentProblem("TLS: the key of --tls-key has a passphrase; name a file with it: --tls-key-password-file")


def _read_variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise EnvironmentProblem(f"environment variable {name} is not set; export it with the cluster's secret")
    return value


def _read_secret_file(name: str, option: str) -> str:
    """Return the one value in a file, without the newline at its end.

    An orchestrator that mounts secrets also sets the file's mode, so any mode is accepted.
    """
    path = Path(name).expanduser()
    try:
        value = read_user_bytes(path, _MAX_CREDENTIALS_BYTES, f"{option} {path}").decode().rstrip("\r\n")
    except UnicodeDecodeError:
        value = ""
    if not value:
        raise EnvironmentProblem(f"{option} {path} is empty or no UTF-8; it needs the value on its first line")
    return value


def _read_credentials_file(path: Path) -> Credentials:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise EnvironmentProblem(f"{path} has mode {mode:04o} and others can read it; run: chmod 0600 {path}")
        values = tomllib.loads(read_user_bytes(path, _MAX_CREDENTIALS_BYTES, f"credentials file {path}").decode())
    except OSError as error:
        raise EnvironmentProblem(f"credentials file {path}: {error.strerror}; create it with mode 0600") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        values = {}
    user, password = values.get("user"), values.get("password")
    # Never repeat the file's content: a part of it may be the secret.
    if not (isinstance(user, str) and user and isinstance(password, str) and password):
        raise EnvironmentProblem(
            f'credentials file {path} is incomplete; it needs two lines: user = "..." and password = "..."'
        )
    return Credentials(user, password)
