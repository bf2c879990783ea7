"""A joining node's file: its fields, and an event that depends on its content alone."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from cdc_platform.errors import InputError, NotFound
from cdc_platform.importing import parse_join_request, read_join_request
from cdc_platform.metastore import JoinRequest

NODE = {
    "host_id": "daf4e510-781a-4f03-aaae-27df6ee7796f",
    "address": "127.0.0.1",
    "datacenter": "dc1",
    "rack": "r1",
    "tokens": [42, -42],
    "shard_count": 8,
    "ignore_msb": 12,
}


def parse_changed_node(**changes: object) -> JoinRequest:
    """Return the request of the node with some fields changed; None removes a field."""
    fields = {name: value for name, value in (NODE | changes).items() if value is not None}
    return parse_join_request(json.dumps(fields))


def test_every_field_is_read() -> None:
    """The fields have types, tokens ascend, and features have a default."""
    request = parse_changed_node()
    assert request.host_id == UUID("daf4e510-781a-4f03-aaae-27df6ee7796f")
    assert (request.address, request.datacenter, request.rack) == ("127.0.0.1", "dc1", "r1")
    assert request.tokens == (-42, 42)
    assert request.num_tokens is None
    assert (request.shard_count, request.ignore_msb) == (8, 12)
    assert request.features == ("CDC_GENERATIONS_V2",)


def test_tokens_as_text_are_the_same_tokens() -> None:
    """ScyllaDB's system tables store tokens as text, and JSON readers lose digits of large numbers."""
    wide = [9223372036854775807, -9223372036854775807]
    assert (
        parse_changed_node(tokens=[str(token) for token in wide]).tokens
        == parse_changed_node(tokens=wide).tokens
        == tuple(sorted(wide))
    )


def test_tokens_may_be_drawn() -> None:
    """A number of tokens requests that many random ones."""
    request = parse_changed_node(tokens=None, num_tokens=256)
    assert (request.tokens, request.num_tokens) == (None, 256)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(NODE | {"tokens": [-42, 42]}),
        json.dumps(NODE | {"tokens": ["42", "-42"]}, indent=4, sort_keys=True),
        json.dumps(NODE | {"features": ["CDC_GENERATIONS_V2"], "num_tokens": None}),
        "\ufeff" + json.dumps(NODE | {"host_id": "DAF4E510-781A-4F03-AAAE-27DF6EE7796F"}),
    ],
)
def test_equal_content_is_the_same_event(tmp_path: Path, text: str) -> None:
    """The layout of the file does not affect the event."""
    file = tmp_path / "node.json"
    file.write_text(text, encoding="utf-8")
    assert read_join_request(file).event_id == parse_changed_node().event_id


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [42, -43]},
        {"tokens": None, "num_tokens": 2},
        {"shard_count": 9},
        {"ignore_msb": 11},
        {"rack": "r2"},
        {"features": []},
        {"host_id": "00000000-0000-0000-0000-000000000001"},
    ],
)
def test_other_content_is_another_event(changes: dict[str, object]) -> None:
    """Two nodes, or one node with other tokens, are never one event."""
    assert parse_changed_node(**changes).event_id != parse_changed_node().event_id


def test_event_ids_are_stable() -> None:
    """Lakes store event IDs: a new version must find the events of an old one."""
    assert parse_changed_node().event_id == "239d04e4-fc12-5d8a-8834-92a8d1c05cf3"


def test_missing_file_is_named() -> None:
    """The path is in the message."""
    with pytest.raises(NotFound, match=r"nowhere\.json: no such file"):
        read_join_request("nowhere.json")


def test_messages_are_one_line_with_source_field_and_value() -> None:
    """A reader sees where the fault is and what to write instead."""
    with pytest.raises(InputError) as refused:
        parse_join_request(json.dumps(NODE | {"ignore_msb": 32}), "node.json")
    assert str(refused.value) == "node.json: ignore_msb: 32 is no whole number from 0 to 31"
