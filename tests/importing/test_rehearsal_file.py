"""The fields of each step in the file of a rehearsal, and both ways to write the short ones."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from cdc_platform.errors import InputError
from cdc_platform.importing import AddNodes, RemoveNode, RepairStreams, ReshardNode, WaitSeconds, parse_rehearsal
from cdc_platform.importing.formats.json_inputs import MAX_STEPS


def test_every_kind_of_step() -> None:
    """Each step has its fields, its defaults and its number in the file."""
    steps = parse_rehearsal(
        json.dumps(
            [
                {"add": {"num_tokens": 256, "shards": 8, "times": 3}},
                {"add": {"tokens": ["-5", 7], "shard_count": 8, "host_id": str(UUID(int=5)), "features": []}},
                {"remove": "10.0.0.3"},
                {"remove": {"node": "10.0.0.3"}},
                {"reshard": {"node": "10.0.0.3", "shards": 4}},
                {"repair": {}},
                {"wait": 60},
                {"wait": {"seconds": 60}},
            ]
        )
    )
    assert [step.number for step in steps] == list(range(1, 9))
    first, second = steps[0].change, steps[1].change
    assert isinstance(first, AddNodes)
    assert (first.shard_count, first.ignore_msb, first.times, first.features) == (8, 12, 3, ("CDC_GENERATIONS_V2",))
    assert isinstance(second, AddNodes)
    assert (second.tokens, second.host_id, second.features) == ((-5, 7), UUID(int=5), ())
    assert [step.change for step in steps[2:]] == [
        RemoveNode(node="10.0.0.3"),
        RemoveNode(node="10.0.0.3"),
        ReshardNode.model_validate({"node": "10.0.0.3", "shard_count": 4}),
        RepairStreams(),
        WaitSeconds(seconds=60),
        WaitSeconds(seconds=60),
    ]


def test_bootstrap_file_is_a_step() -> None:
    """`add` accepts the content of a file for `bootstrap`."""
    node = {
        "host_id": str(UUID(int=5)),
        "address": "10.0.0.5",
        "datacenter": "dc2",
        "rack": "r9",
        "tokens": [1],
        "shard_count": 4,
        "ignore_msb": 0,
        "features": ["CDC_GENERATIONS_V2"],
    }
    (step,) = parse_rehearsal(json.dumps([{"add": node}]))
    assert isinstance(step.change, AddNodes)
    assert step.change.model_dump(mode="json", exclude={"num_tokens", "times"}) == node


def test_number_of_steps_is_bounded() -> None:
    """Repeated steps count."""
    adds = [{"add": {"num_tokens": 1, "shards": 1, "times": MAX_STEPS}}, {"repair": {}}]
    with pytest.raises(InputError, match=f"has {MAX_STEPS + 1} steps"):
        parse_rehearsal(json.dumps(adds))
