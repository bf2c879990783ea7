"""nodetool's members: complete names, replicas without tokens, host IDs, zero-token nodes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing import ImportReport
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import read_current_ring
from cdc_platform.ring import Node
from cdc_platform.tables import NODES

CLOCK = Clock(Microseconds(1_700_000_000_000_000))
ODD = ["eu-west 1", "Ü, größer", "a:b", "dc)1", "]", "x  y", "Up Normal", "rack:r1"]
"""Names that an operator may have given, all of them printable."""
TOKENS = {"10.0.1.1": [-40, 10], "10.0.1.2": [-20, 30], "10.0.2.1": [-30, 20], "10.0.2.2": [-10, 40]}
HOSTS = {address: UUID(int=number) for number, address in enumerate(TOKENS, start=1)}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake(tmp_path / "lake")


def datacenter(address: str, second: str = "eu-west 1") -> str:
    """Return the datacenter of a node."""
    return "us" if address.startswith("10.0.1.") else second


def ring_text(second: str = "eu-west 1", rack: str = "rack1", tokens: dict[str, list[int]] | None = None) -> str:
    """Return the output of `nodetool ring` for two datacenters."""
    text = ""
    for name in ("us", second):
        entries = sorted((t, a) for a, ts in (tokens or TOKENS).items() if datacenter(a, second) == name for t in ts)
        text += (
            f"\nDatacenter: {name}\n==========\nAddress  Rack  Status  State  Load  Owns  Token\n{entries[-1][0]:>70}\n"
        )
        text += "".join(f"{a}  {rack:<12}Up  Normal  1.23 MB  ?  {t}\n" for t, a in entries)
    return f'{text}\n  Warning: "nodetool ring" is used to output all the tokens of a node.\n'


def describe_text(*addresses: str, second: str = "eu-west 1", rack: str = "rack1") -> str:
    """Return the output of `nodetool describering` for a keyspace with these replicas of every range."""
    ends = sorted(token for tokens in TOKENS.values() for token in tokens)
    listed = ", ".join(addresses)
    details = ", ".join(
        f"EndpointDetails(host:{address}, datacenter:{datacenter(address, second)}, rack:{rack})"
        for address in addresses
    )
    lines = [
        f"\tTokenRange(start_token:{start}, end_token:{end}, endpoints:[{listed}], rpc_endpoints:[{listed}], "
        f"endpoint_details:[{details}])"
        for start, end in zip([ends[-1], *ends[:-1]], ends, strict=True)
    ]
    return "\n".join(["Schema Version:a49b80fb-839c-3ea0-ad1a-8782f38b8e44", "TokenRange: ", *lines]) + "\n"


def status_text(hosts: dict[str, UUID], second: str = "eu-west 1", rack: str = "rack1", zero: str = "") -> str:
    """Return the output of `nodetool status` for these nodes; `zero` is the address of one without tokens."""
    text = ""
    for name in ("us", second):
        text += f"Datacenter: {name}\n=====\nStatus=Up/Down/eXcluded\n|/ State=Normal/Leaving/Joining/Moving\n"
        text += "-- Address  Load      Tokens Owns (effective) Host ID                              Rack \n"
        for address, host in hosts.items():
            if datacenter(address, second) == name:
                count = 0 if address == zero else len(TOKENS.get(address, [1, 2]))
                text += f"DN {address} 512.00 KB {count}    33.4%            {host} {rack}\n"
    return f"{text}\nNote: Non-system keyspaces don't have the same replication settings\n"


def import_texts(lake: Lake, folder: Path, *texts: str, shards: int | None = 4) -> ImportReport:
    """Import these texts at once, with the sharding of unknown nodes."""
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"{number}.txt")
        files[-1].write_text(text, encoding="utf-8")
    return import_paths(lake, CLOCK, files, shards=shards, ignore_msb=12)


def by_address(lake: Lake) -> dict[str, Node]:
    """Return the nodes of the ring by address."""
    return {node.address: node for node in read_current_ring(lake).nodes}


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_stored_unchanged(name: str, lake: Lake, tmp_path: Path) -> None:
    """This holds for datacenters and racks in all three of nodetool's texts."""
    import_texts(lake, tmp_path, ring_text(name, rack=name))
    names = {(node.datacenter, node.rack) for node in by_address(lake).values()}
    assert names == {("us", name), (name, name)}
    other = Lake(tmp_path / "describering")
    import_texts(other, tmp_path, describe_text("10.0.2.1", "10.0.2.2", second=name, rack=name))
    assert {(node.datacenter, node.rack) for node in by_address(other).values()} == {(name, name)}
    third = Lake(tmp_path / "status")
    import_texts(third, tmp_path, ring_text(name, rack=name), status_text(HOSTS, name, rack=name))
    assert {(node.datacenter, node.rack) for node in by_address(third).values()} == names
    assert {address: node.host_id for address, node in by_address(third).items()} == HOSTS


@pytest.mark.parametrize("replicas", [["10.0.2.2"], ["10.0.2.1", "10.0.2.2"], ["10.0.2.1", "10.0.1.1"], ["10.9.9.9"]])
def test_describering_never_changes_a_known_ring(replicas: list[str], lake: Lake, tmp_path: Path) -> None:
    """Its endpoints are the replicas of one keyspace, so nodes and tokens stay, with a warning."""
    import_texts(lake, tmp_path, ring_text())
    before, version = by_address(lake), lake.version(NODES)
    report = import_texts(lake, tmp_path, describe_text(*replicas))
    assert (by_address(lake), lake.version(NODES), report.rows_written) == (before, version, 0)
    assert "lists the replicas of one keyspace" in report.warnings[0]
    assert ("10.9.9.9" in report.warnings[1]) == (replicas == ["10.9.9.9"])
    assert {address: list(node.tokens) for address, node in before.items()} == TOKENS


def test_describering_shows_where_the_ring_differs(lake: Lake, tmp_path: Path) -> None:
    """A warning counts the tokens that only one side has."""
    import_texts(lake, tmp_path, ring_text(tokens={**TOKENS, "10.0.1.1": [-40, 11]}))
    report = import_texts(lake, tmp_path, describe_text("10.0.2.1"))
    assert "1 ranges end at tokens that no node here has, the first 10" in report.warnings[1]
    assert "1 tokens of nodes here end no range, the first 11" in report.warnings[1]


def test_status_gives_host_ids_to_nodes_known_by_address(lake: Lake, tmp_path: Path) -> None:
    """True IDs replace those derived from addresses; tokens and shards stay; a repetition writes nothing."""
    import_texts(lake, tmp_path, ring_text())
    before = by_address(lake)
    assert not HOSTS.items() & {address: node.host_id for address, node in before.items()}.items()
    report = import_texts(lake, tmp_path, status_text(HOSTS))
    after = by_address(lake)
    assert {address: node.host_id for address, node in after.items()} == HOSTS
    assert {a: n.tokens for a, n in after.items()} == {a: n.tokens for a, n in before.items()}
    assert report.warnings == []
    version = lake.version(NODES)
    assert import_texts(lake, tmp_path, status_text(HOSTS)).rows_written == 0
    assert import_texts(lake, tmp_path, ring_text()).rows_written == 0
    assert lake.version(NODES) == version


def test_status_removes_no_node(lake: Lake, tmp_path: Path) -> None:
    """Warnings name a known node that it omits, and an unknown one, whose tokens it does not print."""
    import_texts(lake, tmp_path, ring_text(), status_text(HOSTS))
    listed = {address: host for address, host in HOSTS.items() if address != "10.0.2.2"} | {"10.0.2.9": UUID(int=9)}
    report = import_texts(lake, tmp_path, status_text(listed))
    assert {address: node.host_id for address, node in by_address(lake).items()} == HOSTS
    warnings = " ".join(report.warnings)
    assert "node 10.0.2.9 is not known here" in warnings
    assert f"1 known nodes are not in it, the first {HOSTS['10.0.2.2']}" in warnings


def test_other_host_at_a_known_address_is_refused(lake: Lake, tmp_path: Path) -> None:
    """It replaced the known one, and only the ring has its tokens; together with the ring it is imported."""
    import_texts(lake, tmp_path, ring_text(), status_text(HOSTS))
    replaced = HOSTS | {"10.0.2.2": UUID(int=77)}
    with pytest.raises(InputError, match="another node has taken its address"):
        import_texts(lake, tmp_path, status_text(replaced))
    assert {address: node.host_id for address, node in by_address(lake).items()} == HOSTS
    import_texts(lake, tmp_path, ring_text(), status_text(replaced))
    assert {address: node.host_id for address, node in by_address(lake).items()} == replaced


def test_status_without_a_ring_is_refused(lake: Lake, tmp_path: Path) -> None:
    """It prints how many tokens each node has, not which."""
    with pytest.raises(InputError, match="import nodetool ring with it"):
        import_texts(lake, tmp_path, status_text(HOSTS))


def test_ring_and_status_of_two_times_are_refused(lake: Lake, tmp_path: Path) -> None:
    """A node's numbers of tokens differ if the topology changed in between."""
    with pytest.raises(InputError, match=r"node 10.0.1.1 has 2 tokens, and nodetool ring lists 3"):
        import_texts(lake, tmp_path, ring_text(tokens={**TOKENS, "10.0.1.1": [-40, 10, 11]}), status_text(HOSTS))


def test_zero_token_nodes_stay_if_a_text_does_not_print_them(lake: Lake, tmp_path: Path) -> None:
    """Only `nodetool status` prints them; a status without one means that it has left."""
    arbiter = HOSTS | {"10.0.2.9": UUID(int=9)}
    import_texts(lake, tmp_path, ring_text())
    with pytest.raises(InputError, match=r"node 10\.0\.2\.9 is not known.*--shards"):
        import_texts(lake, tmp_path, status_text(arbiter, zero="10.0.2.9"), shards=None)
    import_texts(lake, tmp_path, ring_text(), status_text(arbiter, zero="10.0.2.9"))
    assert (by_address(lake)["10.0.2.9"].tokens, len(by_address(lake))) == ((), 5)
    import_texts(lake, tmp_path, ring_text())
    assert len(by_address(lake)) == 5
    import_texts(lake, tmp_path, describe_text("10.0.2.1"))
    import_texts(lake, tmp_path, ring_text(), status_text(arbiter, zero="10.0.2.9"), shards=None)
    assert len(by_address(lake)) == 5
    import_texts(lake, tmp_path, ring_text(), status_text(HOSTS))
    assert set(by_address(lake)) == set(HOSTS)
