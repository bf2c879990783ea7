"""A driver error is one line: the server's own message without the driver's wrapping, and a suitable remedy."""

from __future__ import annotations

import ssl

import pytest
from cassandra import AuthenticationFailed, InvalidRequest, Unauthorized, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage, SyntaxException

from cdc_platform.scylla import NotGranted
from cdc_platform.scylla.errors import server_message, translate_connect_error, translate_error

WORDS = "unconfigured table t"


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest(f'Error from server: code=2200 [Invalid query] message="{WORDS}"'),
        SyntaxException(code=0x2000, message=WORDS, info=None),
        OverloadedErrorMessage(code=0x1001, message=WORDS, info=None),
        Exception(f'<Error from server: code=2200 [Invalid query] message="{WORDS}">'),
        Exception(f'<Error from server: code=2200 [Invalid query] message="{WORDS}\nand more">'),
        Exception(WORDS),
    ],
    ids=lambda error: type(error).__name__,
)
def test_server_message_is_unwrapped(error: Exception) -> None:
    """This holds for every wrapping by the driver, `repr` included."""
    assert server_message(error) == WORDS
    line = str(translate_error(error, "prod", "ks.t", "reader"))
    assert line.endswith(WORDS)
    assert "<" not in line


def test_server_message_with_quotation_marks_is_complete() -> None:
    """A quoted name at the end belongs to the server's message."""
    assert server_message(Exception('<Error from server: code=2200 [x] message="no table "T"">')) == 'no table "T"'


@pytest.mark.parametrize(
    ("table", "has_reason"),
    [("system_distributed.cdc_generation_timestamps", True), ('"shop"."t_scylla_cdc_log"', False), ("shop.t", False)],
)
def test_replication_of_system_distributed_is_named_only_for_its_tables(table: str, has_reason: bool) -> None:
    """Users choose the replication of their own keyspaces."""
    error = Unavailable("x", consistency=4, required_replicas=2, alive_replicas=1)
    line = str(translate_error(error, "prod", table, "reader"))
    assert "needs 2 replicas and 1 are up" in line
    assert ("system_distributed has three replicas" in line) == has_reason


@pytest.mark.parametrize(
    "error",
    [AuthenticationFailed("no"), Unauthorized("no"), NoHostAvailable("no", {"a": AuthenticationFailed("no")})],
    ids=["login", "rights", "every node"],
)
def test_message_names_no_user_if_none_is_configured(error: Exception) -> None:
    """The line says how to configure one."""
    refusal = translate_error(error, "prod", "ks.t", None)
    assert "anonymous" not in str(refusal)
    assert "None" not in str(refusal)
    assert "--user-env" in str(refusal)
    named = translate_error(error, "prod", "ks.t", "reader")
    assert "reader" in str(named)
    assert "--user-env" not in str(named)
    if isinstance(refusal, NotGranted):
        assert refusal.grant == "GRANT SELECT ON ks.t TO ROLE"


@pytest.mark.parametrize(
    ("code", "has", "has_not"),
    [
        (18, "--tls-ca", "--no-tls-hostname-check"),  # self-signed
        (19, "--tls-ca", "--no-tls-hostname-check"),  # self-signed in the chain
        (20, "--tls-ca", "--no-tls-hostname-check"),  # no local issuer
        (21, "--tls-ca", "--no-tls-hostname-check"),  # the first certificate cannot be verified
        (9, "clock", "--tls-ca"),
        (10, "clock", "--tls-ca"),
        (62, "--no-tls-hostname-check", "--tls-ca"),
        (64, "--no-tls-hostname-check", "--tls-ca"),
    ],
)
def test_rejected_certificate_has_a_suitable_remedy(code: int, has: str, has_not: str) -> None:
    """An unknown CA does not advise about host names, nor the other way round."""
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = code, "as OpenSSL puts it"
    line = str(translate_connect_error(error, "10.0.0.1:9142"))
    assert "as OpenSSL puts it" in line
    assert has in line
    assert has_not not in line
