"""The stand-in itself: what it refuses and counts, so that what tests conclude from it holds."""

from __future__ import annotations

import pytest
from cassandra import InvalidRequest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement
from support.standin.cluster import StandIn

pytestmark = pytest.mark.cassandra


def test_it_takes_select_alone_and_counts_what_it_refuses(standin: StandIn) -> None:
    """An INSERT, a prepared one, a batch and a USE come not through, even from a superuser; a SELECT does."""
    driver = Cluster(
        ["127.0.0.1"],
        port=standin.proxy.port,
        protocol_version=4,
        auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    session = driver.connect()
    insert = "INSERT INTO shop.orders (customer, item) VALUES ('a', 1)"
    batch = BatchStatement()
    batch.add(insert)
    try:
        for wrong in (insert, "USE shop", batch):
            with pytest.raises(InvalidRequest, match="SELECT alone"):
                session.execute(wrong)
        with pytest.raises(InvalidRequest, match="SELECT alone"):
            session.prepare(insert)
        assert list(session.execute("SELECT * FROM shop.orders")) == []
    finally:
        driver.shutdown()
    assert standin.proxy.refused == [insert, "USE shop", "a batch", insert]
