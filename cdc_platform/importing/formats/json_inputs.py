"""Parse the JSON files that commands take: a joining node, the steps of a rehearsal, the last tokens of tablets.

Every field is checked before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.errors import InputError
from cdc_platform.importing.formats.strict_json import parse_json
from cdc_platform.metastore import (
    DEFAULT_FEATURES,
    FeatureNames,
    HostId,
    IgnoreMsb,
    JoinRequest,
    Label,
    OptionalIgnoreMsb,
    OptionalNumTokens,
    OptionalShardCount,
    OptionalTokens,
    ShardCount,
    allow_null,
    input_error,
    whole_number_validator,
)
from cdc_platform.metastore import validate_address as check_address
from cdc_platform.metastore import validate_host_id as check_host_id
from cdc_platform.storage import read_user_text


def read_join_request(path: str | Path) -> JoinRequest:
    """Return the joining node that the JSON file at `path` describes.

    Raises:
        NotFound: the file does not exist.
        InputError: it is not JSON, or a field is missing, unknown or out of bounds.
    """
    return parse_join_request(read_user_text(Path(path)), str(path))


def parse_join_request(text: str, source: str = "bootstrap event") -> JoinRequest:
    """Return the joining node that a JSON text describes; messages call the text `source`.

    Raises:
        InputError: it is not JSON, or a field is missing, unknown or out of bounds.
    """
    value = parse_json(text, source)
    if not isinstance(value, dict):
        hint = "; import a ring snapshot with: cdc-platform import" if isinstance(value, list) else ""
        raise InputError(f"{source} has to be one JSON object that describes a node{hint}")
    try:
        return JoinRequest.model_validate(value)
    except ValidationError as error:
        raise input_error(error, source, tuple(JoinRequest.model_fields)) from None


MAX_STEPS = 10_000
"""The maximum number of steps of one rehearsal, including repeated ones."""
_MAX_SECONDS = 100 * 366 * DAY_SECONDS
_SHARDS = AliasChoices("shard_count", "shards")


def _parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


class AddNodes(BaseModel):
    """Nodes that join, one after the other: with `tokens` (then only one) or with `num_tokens` to draw for each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_id: Annotated[HostId | None, BeforeValidator(allow_null(check_host_id))] = None
    address: Annotated[str | None, BeforeValidator(allow_null(check_address))] = None
    datacenter: Label = "dc1"
    rack: Label = "r1"
    tokens: OptionalTokens = None
    num_tokens: OptionalNumTokens = None
    shard_count: ShardCount = Field(validation_alias=_SHARDS)
    ignore_msb: IgnoreMsb = 12
    features: FeatureNames = DEFAULT_FEATURES
    times: Annotated[int, BeforeValidator(whole_number_validator(1, MAX_STEPS))] = 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tokens is None) == (self.num_tokens is None):
            which = "neither tokens nor num_tokens is" if self.tokens is None else "both tokens and num_tokens are"
            raise ValueError(f"{which} given; give tokens to name them, or num_tokens to draw them")
        if self.times > 1 and (self.tokens is not None or self.host_id or self.address):
            raise ValueError(f"times is {self.times}, so that tokens, host_id and address cannot be named; draw them")
        return self


class RemoveNode(BaseModel):
    """A node that leaves for good."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Label


class ReshardNode(BaseModel):
    """A node that comes back with other shards; fields that are not given stay as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Label
    shard_count: OptionalShardCount = Field(default=None, validation_alias=_SHARDS)
    ignore_msb: OptionalIgnoreMsb = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.shard_count is None and self.ignore_msb is None:
            raise ValueError("neither shard_count nor ignore_msb is given; give what changes")
        return self


class RepairStreams(BaseModel):
    """A call of checkAndRepairCdcStreams; `strict` repairs what is only a warning too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strict: Annotated[bool, BeforeValidator(_parse_flag)] = False


class WaitSeconds(BaseModel):
    """Time that passes, in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: Annotated[int, BeforeValidator(whole_number_validator(1, _MAX_SECONDS))]


RehearsalChange = AddNodes | RemoveNode | ReshardNode | RepairStreams | WaitSeconds

_KINDS: Mapping[str, type[RehearsalChange]] = MappingProxyType(
    {"add": AddNodes, "remove": RemoveNode, "reshard": ReshardNode, "repair": RepairStreams, "wait": WaitSeconds}
)
# The field that may stand for the whole change.
_SHORT = MappingProxyType({"remove": "node", "wait": "seconds"})


@dataclass(frozen=True)
class RehearsalFileStep:
    """One change, with its number in the file, from 1."""

    number: int
    kind: str
    change: RehearsalChange


def read_rehearsal(path: str | Path) -> list[RehearsalFileStep]:
    """Return the steps of the rehearsal at `path`.

    Raises:
        NotFound: the file does not exist.
        InputError: as `parse_rehearsal`.
    """
    return parse_rehearsal(read_user_text(Path(path)), str(path))


def parse_rehearsal(text: str, source: str = "rehearsal") -> list[RehearsalFileStep]:
    """Return the steps of a rehearsal's JSON text; messages call the text `source`.

    Raises:
        InputError: it is not a JSON list of steps, or a step has a field that is missing, unknown or out of bounds.
    """
    value = parse_json(text, source)
    if not isinstance(value, list):
        raise InputError(
            f'{source} has to be a JSON list of steps, as in [{{"remove": "10.0.0.3"}}, {{"repair": {{}}}}]'
        )
    if not value:
        raise InputError(f"{source} lists no steps; a rehearsal has at least one")
    steps = [_parse_step(item, number, f"{source}: step {number}") for number, item in enumerate(value, start=1)]
    total = sum(step.change.times if isinstance(step.change, AddNodes) else 1 for step in steps)
    if total > MAX_STEPS:
        raise InputError(f"{source} has {total} steps, repeated ones counted; a rehearsal has at most {MAX_STEPS}")
    return steps


def _parse_step(item: object, number: int, source: str) -> RehearsalFileStep:
    known = ", ".join(_KINDS)
    if not isinstance(item, dict) or len(item) != 1:
        raise InputError(f'{source} has to be an object with one field, which is one of {known}: {{"wait": 3600}}')
    ((kind, fields),) = item.items()
    if kind not in _KINDS:
        raise InputError(f"{source}: {kind!r} is no change of the topology; the changes are {known}")
    model = _KINDS[kind]
    if kind in _SHORT and not isinstance(fields, dict):
        fields = {_SHORT[kind]: fields}
    if not isinstance(fields, dict):
        raise InputError(f"{source}: {kind} has to be an object with the fields {', '.join(model.model_fields)}")
    if "shards" in fields and "shard_count" in fields:
        raise InputError(f"{source}: {kind}: both shards and shard_count are given; they are the same field")
    try:
        return RehearsalFileStep(number, kind, model.model_validate(fields))
    except ValidationError as error:
        raise input_error(error, f"{source}: {kind}", tuple(model.model_fields)) from None


_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def read_tablet_ends(path: str | Path) -> list[int]:
    """Return the integers of the list in a file, in order.

    Raises:
        NotFound, InputError: the file does not exist, is not a JSON list, or an entry is not an integer.
    """
    return parse_tablet_ends(read_user_text(Path(path)), str(path))


def parse_tablet_ends(text: str, source: str) -> list[int]:
    """Return the integers as `read_tablet_ends` does, from the text itself; messages call the text `source`.

    Raises:
        InputError: it is not a JSON list, or an entry is not an integer.
    """
    value = parse_json(text, source)
    if not isinstance(value, list):
        raise InputError(f"{source} is no JSON list; write the tablets' last tokens as [-1, 9223372036854775807]")
    return [_parse_token(entry, number, source) for number, entry in enumerate(value)]


def _parse_token(entry: object, number: int, source: str) -> int:
    if isinstance(entry, int) and not isinstance(entry, bool):
        return entry
    if isinstance(entry, str) and _INTEGER.fullmatch(entry):
        return int(entry)
    excerpt = str(entry)[:60] if not isinstance(entry, str) else repr(entry[:60])
    raise InputError(f"{source}: entry {number} is {excerpt}, which is no integer; tokens are integers")
