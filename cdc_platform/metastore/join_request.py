"""Join requests and the validated fields that describe a node, as pydantic types.

The same content is always the same event. This is a separate module because only file readers need pydantic; sensors
and look-ups do not load it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from ipaddress import ip_address
from itertools import pairwise
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from cdc_platform.errors import InputError
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_IGNORE_MSB, MAX_RANGES, MAX_SHARD_COUNT, MINIMUM_TOKEN

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_HOST_PART = re.compile(r"\w([\w-]{0,61}\w)?", re.ASCII)
_TOKEN_RULE = f"tokens are integers from {FIRST_TOKEN} to {LAST_TOKEN}"


def validate_host_id(value: object) -> UUID:
    """Return a host's UUID from text with dashes or from a UUID."""
    if isinstance(value, str) and _UUID.fullmatch(value):
        value = UUID(value)
    if not isinstance(value, UUID):
        raise ValueError(f"{value!r} is not a UUID; write it as daf4e510-781a-4f03-aaae-27df6ee7796f")
    if value.int == 0:
        raise ValueError("the UUID is all zeros, which names no host")
    return value


def validate_address(value: object) -> str:
    """Return a node's address: IPv4, IPv6 or a host name."""
    text = validate_label(value)
    parts = text.split(".")
    if len(text) <= 253 and all(map(_HOST_PART.fullmatch, parts)) and not parts[-1].isdecimal():
        return text
    try:
        ip_address(text)
    except ValueError:
        pass
    else:
        return text
    raise ValueError(f"{text[:60]!r} is no address: write an IP address as 10.0.0.4, or the name of a host")


def validate_label(value: object) -> str:
    """Return the name of a datacenter or rack: non-empty text of at most 255 characters on one line."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    if not value.strip() or len(value) > 255 or not value.isprintable():
        raise ValueError(f"{value[:40]!r} is no name: 1 to 255 printable characters on one line")
    return value


def validate_tokens(value: object) -> tuple[int, ...]:
    """Return a node's tokens, ascending, from JSON integers or from their text in ScyllaDB's system tables.

    An empty list describes a zero-token node.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_shortened(value)} is no list; write the tokens as [-42, 42]")
    if len(value) > MAX_RANGES:
        raise ValueError(f"{len(value)} tokens; a ring has at most {MAX_RANGES} ranges")
    legal = [_token(item, position) for position, item in enumerate(value)]
    legal.sort()
    for one, other in pairwise(legal):
        if one == other:
            raise ValueError(f"token {one} occurs twice; list each token once")
    return tuple(legal)


def validate_feature_names(value: object) -> tuple[str, ...]:
    """Return the feature names of a list, each once and sorted; the order of the input has no meaning."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f'{_shortened(value)} is no list; write the features as ["CDC_GENERATIONS_V2"]')
    return tuple(sorted({validate_label(item) for item in value}))


def whole_number_validator(low: int, high: int) -> Callable[[object], int]:
    """Return a validator of whole numbers from `low` to `high` that rejects booleans, floats and text."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{_shortened(value)} is no whole number from {low} to {high}")
        return value

    return check


def allow_null(check: Callable[[object], Any]) -> Callable[[object], Any]:
    """Return a validator that also accepts null, so that the field is optional."""
    return lambda value: None if value is None else check(value)


def allow_empty(check: Callable[[object], str]) -> Callable[[object], str]:
    """Return a validator that also accepts the empty text, which means "unknown" in a ring snapshot."""
    return lambda value: "" if value == "" else check(value)


HostId = Annotated[UUID, BeforeValidator(validate_host_id)]
Address = Annotated[str, BeforeValidator(validate_address)]
Label = Annotated[str, BeforeValidator(validate_label)]
OptionalAddress = Annotated[str, BeforeValidator(allow_empty(validate_address))]
OptionalLabel = Annotated[str, BeforeValidator(allow_empty(validate_label))]
TokenList = Annotated[tuple[int, ...], BeforeValidator(validate_tokens)]
FeatureNames = Annotated[tuple[str, ...], BeforeValidator(validate_feature_names)]
ShardCount = Annotated[int, BeforeValidator(whole_number_validator(1, MAX_SHARD_COUNT))]
IgnoreMsb = Annotated[int, BeforeValidator(whole_number_validator(0, MAX_IGNORE_MSB))]
OptionalTokens = Annotated[tuple[int, ...] | None, BeforeValidator(allow_null(validate_tokens))]
OptionalNumTokens = Annotated[int | None, BeforeValidator(allow_null(whole_number_validator(0, MAX_RANGES)))]
OptionalShardCount = Annotated[int | None, BeforeValidator(allow_null(whole_number_validator(1, MAX_SHARD_COUNT)))]
OptionalIgnoreMsb = Annotated[int | None, BeforeValidator(allow_null(whole_number_validator(0, MAX_IGNORE_MSB)))]


def input_error(error: ValidationError, source: str, known: tuple[str, ...]) -> InputError:
    """Convert pydantic's first error into the platform's. `known` lists the fields that the file may have."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return InputError(f"{source}: field {field} is missing; add it")
    if first["type"] == "extra_forbidden":
        return InputError(f"{source}: field {field} is not known; the fields are {', '.join(known)}")
    reason = first.get("ctx", {}).get("error", first["msg"])
    return InputError(f"{source}: {field}: {reason}" if field else f"{source}: {reason}")


def _token(item: object, position: int) -> int:
    if isinstance(item, str) and _INTEGER.fullmatch(item):
        item = int(item)
    if isinstance(item, bool) or not isinstance(item, int):
        raise ValueError(f"entry {position} is {_shortened(item)}, which is no integer; {_TOKEN_RULE}")
    if item == MINIMUM_TOKEN:
        raise ValueError(f"entry {position} is {item}, the minimum before all keys, which no node owns; {_TOKEN_RULE}")
    if not FIRST_TOKEN <= item <= LAST_TOKEN:
        raise ValueError(f"entry {position} is {_shortened(item)}, out of range; {_TOKEN_RULE}")
    return item


def _shortened(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) or value is None else repr(value)
    text = "null" if value is None else text
    return text if len(text) <= 60 else text[:57] + "..."


DEFAULT_FEATURES = ("CDC_GENERATIONS_V2",)
_EVENT_NAMESPACE = uuid.UUID("7b1c9c52-6f0e-5f0a-9d3e-2a6d3f1c8e47")


class JoinRequest(BaseModel):
    """A node that wants to join, with its own `tokens` (stored ascending) or with `num_tokens` to draw.

    A zero-token node has `tokens` [] or `num_tokens` 0.

    Raises:
        pydantic.ValidationError: the content is invalid; readers of files convert it with `input_error`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_id: HostId
    address: Address
    datacenter: Label
    rack: Label
    shard_count: ShardCount
    ignore_msb: IgnoreMsb
    tokens: OptionalTokens = None
    num_tokens: OptionalNumTokens = None
    features: FeatureNames = DEFAULT_FEATURES

    @model_validator(mode="after")
    def _one_way_to_name_tokens(self) -> Self:
        if (self.tokens is None) == (self.num_tokens is None):
            problem = "neither tokens nor num_tokens is" if self.tokens is None else "both tokens and num_tokens are"
            raise ValueError(f"{problem} there; give tokens to name them, or num_tokens to draw them")
        return self

    @property
    def is_zero_token(self) -> bool:
        """Return True if the node owns no tokens; it then makes no generation and waits in no inbox."""
        return not self.tokens and not self.num_tokens

    @property
    def event_id(self) -> str:
        """Return the UUID of this content. The same request is the same event, in any file layout."""
        content = self.model_dump(mode="json")
        content["tokens"] = content["tokens"] and [str(token) for token in content["tokens"]]
        return str(uuid.uuid5(_EVENT_NAMESPACE, json.dumps(content, sort_keys=True, separators=(",", ":"))))
