"""A rehearsal as a JSON file says it: a list of topology changes, each checked to the last field first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.errors import InputError
from cdc_platform.records.join_request import FEATURES
from cdc_platform.records.node_fields import (
    HostId,
    IgnoreMsb,
    Label,
    Names,
    OptionalIgnoreMsb,
    OptionalNumTokens,
    OptionalShardCount,
    OptionalTokens,
    ShardCount,
    optional,
    refusal,
    whole_number,
)
from cdc_platform.records.node_fields import address as check_address
from cdc_platform.records.node_fields import host_id as check_host_id
from cdc_platform.sources.json_files import parse_json
from cdc_platform.user_files import read_text

MOST_STEPS = 10_000
"""Steps that one rehearsal may have, repeated ones counted."""
_MOST_SECONDS = 100 * 366 * DAY_SECONDS
_SHARDS = AliasChoices("shard_count", "shards")


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


class Add(BaseModel):
    """Nodes that join, one after the other: with `tokens` (then only one) or with `num_tokens` to draw for each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_id: Annotated[HostId | None, BeforeValidator(optional(check_host_id))] = None
    address: Annotated[str | None, BeforeValidator(optional(check_address))] = None
    datacenter: Label = "dc1"
    rack: Label = "r1"
    tokens: OptionalTokens = None
    num_tokens: OptionalNumTokens = None
    shard_count: ShardCount = Field(validation_alias=_SHARDS)
    ignore_msb: IgnoreMsb = 12
    features: Names = FEATURES
    times: Annotated[int, BeforeValidator(whole_number(1, MOST_STEPS))] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tokens is None) == (self.num_tokens is None):
            found = "neither tokens nor num_tokens is" if self.tokens is None else "both tokens and num_tokens are"
            raise ValueError(f"{found} there; give tokens to name them, or num_tokens to draw them")
        if self.times > 1 and (self.tokens is not None or self.host_id or self.address):
            raise ValueError(f"times is {self.times}, so that tokens, host_id and address cannot be named; draw them")
        return self


class Remove(BaseModel):
    """A node that leaves for good."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Label


class Reshard(BaseModel):
    """A node that comes back with other shards; what is not said stays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Label
    shard_count: OptionalShardCount = Field(default=None, validation_alias=_SHARDS)
    ignore_msb: OptionalIgnoreMsb = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.shard_count is None and self.ignore_msb is None:
            raise ValueError("neither shard_count nor ignore_msb is there; say what changes")
        return self


class Repair(BaseModel):
    """A call of checkAndRepairCdcStreams; `strict` repairs what is only a warning too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strict: Annotated[bool, BeforeValidator(_flag)] = False


class Wait(BaseModel):
    """Time that passes, in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: Annotated[int, BeforeValidator(whole_number(1, _MOST_SECONDS))]


Change = Add | Remove | Reshard | Repair | Wait

_KINDS: Mapping[str, type[Change]] = MappingProxyType(
    {"add": Add, "remove": Remove, "reshard": Reshard, "repair": Repair, "wait": Wait}
)
# What may stand for the whole of a change where it has one field that matters.
_SHORT = MappingProxyType({"remove": "node", "wait": "seconds"})


@dataclass(frozen=True)
class Step:
    """One change, with its place in the file from 1 on."""

    number: int
    kind: str
    change: Change


def read_rehearsal(path: str | Path) -> list[Step]:
    """The steps of the rehearsal at `path`.

    Raises:
        NotFound: there is no such file.
        InputError: as `parse_rehearsal`.
    """
    return parse_rehearsal(read_text(Path(path)), str(path))


def parse_rehearsal(text: str, source: str = "rehearsal") -> list[Step]:
    """The steps of a rehearsal's JSON text; `source` is what messages call it.

    Raises:
        InputError: it is no JSON list of steps, or a step has a field that is missing, unknown or out of its bounds.
    """
    value = parse_json(text, source)
    if not isinstance(value, list):
        raise InputError(
            f'{source} has to be a JSON list of steps, as in [{{"remove": "10.0.0.3"}}, {{"repair": {{}}}}]'
        )
    if not value:
        raise InputError(f"{source} lists no steps; a rehearsal has at least one")
    steps = [_step(item, number, f"{source}: step {number}") for number, item in enumerate(value, start=1)]
    total = sum(step.change.times if isinstance(step.change, Add) else 1 for step in steps)
    if total > MOST_STEPS:
        raise InputError(f"{source} has {total} steps, repeated ones counted; a rehearsal has at most {MOST_STEPS}")
    return steps


def _step(item: object, number: int, source: str) -> Step:
    known = ", ".join(_KINDS)
    if not isinstance(item, dict) or len(item) != 1:
        raise InputError(f'{source} has to be an object with one field, which is one of {known}: {{"wait": 3600}}')
    ((kind, fields),) = item.items()
    if kind not in _KINDS:
        raise InputError(f"{source}: {kind!r} is no change of the topology; there are {known}")
    model = _KINDS[kind]
    if kind in _SHORT and not isinstance(fields, dict):
        fields = {_SHORT[kind]: fields}
    if not isinstance(fields, dict):
        raise InputError(f"{source}: {kind} has to be an object with the fields {', '.join(model.model_fields)}")
    if "shards" in fields and "shard_count" in fields:
        raise InputError(f"{source}: {kind}: both shards and shard_count are there; they are the same field")
    try:
        return Step(number, kind, model.model_validate(fields))
    except ValidationError as error:
        raise refusal(error, f"{source}: {kind}", tuple(model.model_fields)) from None
