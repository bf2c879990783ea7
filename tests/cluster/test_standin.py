"""The stand-in itself: what it refuses and counts, so that what tests conclude from it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra import InvalidRequest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy
from cassandra.query import BatchStatement
from support.standin.cluster import StandIn
from support.standin.versions import VERSIONS

pytestmark = pytest.mark.cassandra


@pytest.fixture
def session(standin: StandIn) -> Iterator[Session]:
    """A superuser's, through the proxy."""
    driver = Cluster(
        ["127.0.0.1"],
        port=standin.proxy.port,
        protocol_version=4,
        auth_provider=PlainTextAuthProvider("cassandra", "cassandra"),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy())},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    yield driver.connect()
    driver.shutdown()


def test_it_takes_select_alone_and_counts_what_it_refuses(standin: StandIn, session: Session) -> None:
    """An INSERT, a prepared one, a batch and a USE come not through, even from a superuser; a SELECT does."""
    insert = "INSERT INTO shop.orders (customer, item) VALUES ('a', 1)"
    batch = BatchStatement()
    batch.add(insert)
    for wrong in (insert, "USE shop", batch):
        with pytest.raises(InvalidRequest, match="SELECT alone"):
            session.execute(wrong)
    with pytest.raises(InvalidRequest, match="SELECT alone"):
        session.prepare(insert)
    assert list(session.execute("SELECT * FROM shop.orders")) == []
    assert standin.proxy.refused == [insert, "USE shop", "a batch", insert]


ELEMENTS = {"m": "m[1]", "s": "s[1]", "u": "u.a", "l": "l[0]"}
TOLD = "Cannot use selection function writeTime on collections"


@pytest.fixture
def collections(standin: StandIn) -> Iterator[None]:
    """A row with a map, a set, a list and a user type, none of them frozen, and a cell that is none of those."""
    standin.world.run("CREATE TYPE IF NOT EXISTS shop.told (a int, b text)")
    columns = "p int PRIMARY KEY, v int, m map<int, int>, s set<int>, l list<int>, u told"
    standin.world.run(f"CREATE TABLE shop.elements ({columns})")
    values = "1, 1, {1: 1}, {1}, [1], {a: 1, b: 'x'}"
    standin.world.run(f"INSERT INTO shop.elements (p, v, m, s, l, u) VALUES ({values}) USING TIMESTAMP 7 AND TTL 1000")
    standin.proxy.collections, standin.proxy.lists = set(ELEMENTS), {"l"}
    yield
    standin.world.run("DROP TABLE shop.elements")


@pytest.mark.usefixtures("collections")
@pytest.mark.parametrize("version", [name for name, each in VERSIONS.items() if each.is_scylla])
def test_it_tells_times_of_elements_as_its_version_does(standin: StandIn, session: Session, version: str) -> None:
    """Of a whole collection never, of an element of a list never, of others from 2026.2 on; of a plain cell always."""
    standin.proxy.version = VERSIONS[version]
    told = {"m", "s", "u"} if version in ("2026.2", "2026.3") else set[str]()
    for function in ("writetime", "TTL", "WriteTime"):
        for column, element in ELEMENTS.items():
            asked = [f"{function}({column})", f'{function}( "{column}" )']
            asked += [] if column in told else [f"v, {function}({element})"]
            for each in asked:
                with pytest.raises(InvalidRequest, match=TOLD):
                    session.execute(f"SELECT {each} FROM shop.elements")
            if column in told:
                assert len(session.execute(f"SELECT v, {function}({element}) FROM shop.elements").one()) == 2
        assert session.execute(f"SELECT {function}(v) FROM shop.elements").one()[0] > 0


@pytest.mark.usefixtures("collections")
def test_cassandra_would_tell_them(standin: StandIn, session: Session) -> None:
    """What the proxy refuses for a ScyllaDB is not refused for it by what is behind it, but for elements of lists."""
    standin.proxy.collections.clear()
    standin.proxy.lists.clear()
    for column, element in ELEMENTS.items():
        session.execute(f"SELECT writetime({column}) FROM shop.elements")
        if column != "l":
            session.execute(f"SELECT writetime({element}) FROM shop.elements")
