"""A wrong connection or a broken cluster is one line with a remedy, exit code 2, and no write.

One table has wrong requests and one has faults of the cluster; the servers are real.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.command_line import run
from support.files.bad_input import Case, argument, assert_one_line, assert_refused, listing
from support.ports import free_ports
from support.standin.certificates import Certificates, make_certificates
from support.standin.cluster import NODES, PASSWORD, USER, StandIn, nodes
from support.standin.proxy import UNAVAILABLE, Proxy
from support.standin.silent import listening
from support.standin.versions import VERSIONS
from support.standin.world import PLAIN

from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, registry

_ADD = ("cluster", "add", "new", "--contact", "127.0.0.1:1")
_OF_FILE = ("--credentials-file", "{dir}/secret.toml")
REQUESTS = [
    argument("no contact point", "--contact", "cluster", "add", "new"),
    argument("a contact point that is a URL", "no contact point", "cluster", "add", "new", "--contact", "cql://a"),
    argument("port 0", "no contact point", "cluster", "add", "new", "--contact", "a:0"),
    argument("a port beyond 65535", "no contact point", "cluster", "add", "new", "--contact", "a:70000"),
    argument("an empty contact point", "no contact point", "cluster", "add", "new", "--contact", ""),
    argument("two ports of one host", "different ports at 127.0.0.1", *_ADD, "--contact", "127.0.0.1:2"),
    argument("an address without a node", "is not NODE=HOST[:PORT]", *_ADD, "--address", "=a:1"),
    argument("an address without a host", "is not NODE=HOST[:PORT]", *_ADD, "--address", "10.0.0.1"),
    argument("an address with a bad port", "no contact point", *_ADD, "--address", "10.0.0.1=a:70000"),
    argument("two addresses of a node", "twice", *_ADD, "--address", "10.0.0.1=a", "--address", "10.0.0.1=b"),
    argument("no such level", "'quorum'", *_ADD, "--consistency", "most"),
    argument("no rows a second", "is not in the range", *_ADD, "--rate", "0"),
    argument("no requests a second", "is not in the range", *_ADD, "--request-rate", "0"),
    argument("a file of a user alone", "must be given together", *_ADD, "--user-file", "u"),
    argument("a file of a password alone", "must be given together", *_ADD, "--password-file", "p"),
    argument("two kinds of files", "exclude each other", *_ADD, "--user-file", "u", "--password-file", "p", *_OF_FILE),
    argument(
        "a password without its key", "add --tls-cert and --tls-key", *_ADD, "--tls", "--tls-key-password-file", "p"
    ),
    argument("no user file", "--user-file '' is empty", *_ADD, "--user-file", "", "--password-file", "p"),
    argument("a name with a slash", "no cluster name", "cluster", "add", "../x", "--contact", "a"),
    argument("a name in capitals", "no cluster name", "cluster", "add", "Prod", "--contact", "a"),
    argument("a user without a password", "must be given together", *_ADD, "--user-env", "CDC_USER"),
    argument("a secret for a name", "not the secret itself", *_ADD, "--user-env", "U", "--password-env", "pa$$word"),
    argument("two ways of a secret", "give one", *_ADD, "--user-env", "U", "--password-env", "P", *_OF_FILE),
    argument("a certificate without its key", "must be given together", *_ADD, "--tls", "--tls-cert", "c.pem"),
    argument("a CA without TLS", "add --tls", *_ADD, "--tls-ca", "ca.pem"),
    argument("a timeout of nothing", "--connect-timeout", *_ADD, "--connect-timeout", "0"),
    argument("pages without rows", "--page-size", *_ADD, "--page-size", "0"),
    argument(
        "the same name for another",
        "already registered with another connection",
        "cluster",
        "add",
        "prod",
        "--contact",
        "127.0.0.1:2",
    ),
    *(
        argument(f"{' '.join(command)} of a cluster that nobody knows", "no cluster other is known", *command, "other")
        for command in (("observe",), ("cluster", "test"), ("cluster", "remove"), ("cluster", "replace"))
    ),
]


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.name)
def test_invalid_request_prints_one_line(case: Case, tmp_path: Path) -> None:
    """An invalid request is refused before a connection is made."""
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    assert_refused(case, home, tmp_path)


@dataclass(frozen=True)
class Secret:
    """A fault of the place that should have a secret or a certificate."""

    name: str
    says: str
    changes: dict[str, object]
    files: dict[str, tuple[str, int]] = field(default_factory=dict)


_FILE: dict[str, object] = {"user_env": None, "password_env": None, "credentials_file": "{dir}/secret.toml"}
_FILES: dict[str, object] = {
    "user_env": None,
    "password_env": None,
    "user_file": "{dir}/user",
    "password_file": "{dir}/password",
}
SECRETS = [
    Secret("a variable that is not set", "CDC_NOT_SET is not set", {"password_env": "CDC_NOT_SET"}),
    Secret("a file that is not there", "No such file", _FILE),
    Secret(
        "a file that others can read", "chmod 0600", _FILE, {"secret.toml": ('user = "a"\npassword = "b"\n', 0o644)}
    ),
    Secret("a file without a password", "two lines", _FILE, {"secret.toml": ('user = "a"\n', 0o600)}),
    Secret("a file of other text", "two lines", _FILE, {"secret.toml": ("hunter2\n", 0o600)}),
    Secret("files that are not there", "--user-file", {**_FILES, "user_file": "{dir}/none"}, {}),
    Secret("an empty file", "--password-file", _FILES, {"user": ("a", 0o644), "password": ("\n", 0o644)}),
    Secret("a CA that is not there", "cannot be used", {"tls": True, "tls_ca": "{dir}/ca.pem"}),
    Secret("a CA that is none", "cannot be used", {"tls": True, "tls_ca": "{dir}/ca.pem"}, {"ca.pem": ("x", 0o600)}),
]


@pytest.mark.parametrize("case", SECRETS, ids=lambda case: case.name)
def test_unavailable_secret_is_one_line(case: Secret, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the place and never its content; no connection is made."""
    for name, (text, mode) in case.files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    for name in (USER, PASSWORD):
        monkeypatch.setenv(name, "hunter2")
    values = {"contacts": ("127.0.0.1:1",), "user_env": USER, "password_env": PASSWORD} | case.changes
    placed = {
        key: value.replace("{dir}", str(tmp_path)) if isinstance(value, str) else value for key, value in values.items()
    }
    registry.add_cluster(open_home_location(tmp_path / "home"), "prod", Connection.model_validate(placed))
    answer = run("--home", tmp_path / "home", "observe", "prod")
    assert answer.exit_code == 2
    assert_one_line(answer.stderr, case.says)
    _, _, remedy = answer.stderr.partition("; ")
    assert remedy, "cluster test names a remedy"
    assert "hunter2" not in answer.stderr


Break = Callable[[StandIn, pytest.MonkeyPatch, Path], dict[str, object]]


@dataclass(frozen=True)
class Fault:
    """A fault of a cluster; `happens` causes it and returns the connection options that it changes."""

    name: str
    says: str
    happens: Break


def _wrong_password(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    env.setenv(PASSWORD, "no-such")
    return {}


def _wrong_user(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    env.setenv(USER, "nobody")
    return {}


def _not_granted(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    env.setenv(USER, PLAIN[0])
    env.setenv(PASSWORD, PLAIN[1])
    return {}


def _no_login(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    return {"user_env": None, "password_env": None}


def _of_version(name: str) -> Break:
    def happens(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
        standin.proxy.version = VERSIONS[name]
        return {}

    return happens


def _changes(**changes: object) -> Break:
    return lambda standin, env, folder: changes


def _server_without_tls(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    return {"tls": True, "tls_ca": str(_certificates(folder).ca)}


def _all_down(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    for node in range(NODES):
        standin.proxy.kill(node)
    return {}


def _paused(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    standin.proxy.faults.paused = set(range(NODES))
    return {"connect_timeout": 0.5, "request_timeout": 0.5}


def _unavailable(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    standin.proxy.faults.errors = [UNAVAILABLE] * 1000
    return {}


def _overloaded(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    standin.proxy.faults.error_rate = 1.0
    return {}


def _two_owners_of_a_token(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    """A token has two owners, so there is no ring."""
    first, second = nodes(2)
    standin.world.put("scylla.topology", key="topology", host_id=second.host_id, tokens={str(first.tokens[0])})
    return {}


def _hostile_rack(standin: StandIn, env: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    """A rack's name has an escape sequence that would clear the terminal."""
    host_id = nodes(1)[0].host_id
    standin.world.put("scylla.topology", key="topology", host_id=host_id, rack="\x1b[2Jr1")
    return {}


FAULTS = [
    Fault("wrong password", "was rejected; check its user and password", _wrong_password),
    Fault("unknown user", "was rejected; check its user and password", _wrong_user),
    Fault("no login where one is wanted", "requires a user, and none is configured", _no_login),
    Fault("permissions missing", "GRANT SELECT ON system.", _not_granted),
    Fault("unknown host", "unknown host", _changes(contacts=("no-such-host.invalid:9042",))),
    Fault("wrong port", "nothing listens", _changes(contacts=("127.0.0.1:1",))),
    Fault("TLS that the server does not speak", "does not use TLS", _server_without_tls),
    Fault("unknown datacenter", "no datacenter moon, but datacenter1", _changes(datacenter="moon")),
    Fault("a version without CDC", "no table of CDC generations", _of_version("4.2")),
    Fault("a plain Cassandra", "it is no ScyllaDB", _of_version("Cassandra")),
    Fault("all nodes down", "add --tls", _all_down),
    Fault("nodes that hang", "in time", _paused),
    Fault("too few replicas", "replicas", _unavailable),
    Fault("always overloaded", "could not be read", _overloaded),
    Fault("a token with two owners", "token", _two_owners_of_a_token),
    Fault("a rack with an escape", r"rack: '\x1b[2Jr1' is no name", _hostile_rack),
]


@pytest.mark.cassandra
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_broken_cluster_is_one_line(
    fault: Fault, standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observation fails with the fault and its remedy, and imports nothing."""
    changes = fault.happens(standin, monkeypatch, tmp_path)
    _assert_refused(standin.connection(**changes), fault.says, tmp_path)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "no CQL server"),
        (b"", "closed immediately"),
        (b"SSH-2.0", "no CQL server"),
        (b"\x84\x00\x00\x00\x06\x00\x00\x00\x03\x00\x05a", "cannot be parsed"),
        (b"\x84\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x0a\x00\x00", "opcode 0"),
    ],
    ids=["HTTP", "closes", "SSH", "a broken SUPPORTED", "an error"],
)
def test_other_server_is_one_line(answer: bytes, says: str, tmp_path: Path) -> None:
    """The line describes the response of a server that does not speak CQL, or that it gave none."""
    with listening(answer) as port:
        _assert_refused(Connection(contacts=(f"127.0.0.1:{port}",), connect_timeout=5), says, tmp_path)


def test_silent_server_times_out(tmp_path: Path) -> None:
    """The server accepts the connection and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        contact = f"127.0.0.1:{silent.getsockname()[1]}"
        _assert_refused(Connection(contacts=(contact,), connect_timeout=0.3), "no response in time", tmp_path)


@pytest.mark.cassandra
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tls": False, "tls_ca": None}, "add --tls"),
        ({"tls_ca": None}, "pass its CA with --tls-ca ["),
        ({}, "requires a client certificate"),
        ({"contacts": ("localhost:{port}",)}, "use the certificate's host name in --contact"),
    ],
    ids=["no TLS", "an unknown CA", "no certificate of the client", "another host name"],
)
def test_tls_mismatch_is_one_line(changes: dict[str, object], says: str, standin: StandIn, tmp_path: Path) -> None:
    """The message for a TLS server that requires a client's certificate names the missing option."""
    certificates = _certificates(tmp_path)
    proxy = Proxy(standin.server.port, free_ports(1)[0], 1, tls=certificates.server(wants_client=True))
    try:
        values = {"contacts": (f"127.0.0.1:{proxy.port}",), "tls": True, "tls_ca": str(certificates.ca)} | changes
        contacts = values["contacts"]
        assert isinstance(contacts, tuple)
        values["contacts"] = tuple(contact.replace("{port}", str(proxy.port)) for contact in contacts)
        _assert_refused(standin.connection(**values), says, tmp_path)
    finally:
        proxy.stop()


def _assert_refused(connection: Connection, says: str, folder: Path) -> None:
    home = folder / "home"
    registry.add_cluster(open_home_location(home), "prod", connection)
    before = listing(home)
    answer = run("--home", home, "observe", "prod")
    assert (answer.exit_code, answer.stdout) == (2, ""), answer
    assert_one_line(answer.stderr, says)
    assert listing(home) == before


def _certificates(folder: Path) -> Certificates:
    (folder / "certificates").mkdir()
    return make_certificates(folder / "certificates")
