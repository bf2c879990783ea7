"""A joining node as a JSON file says it, checked to the last field before anything is queued.

Whether the ring has room for it (tokens with owners, hosts that wait already) is left to the lifecycle's inbox.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from cdc_platform.errors import InputError
from cdc_platform.sources.json_files import parse_json, read_text
from cdc_platform.sources.node_fields import (
    HostId,
    IgnoreMsb,
    Label,
    Names,
    OptionalNumTokens,
    OptionalTokens,
    ShardCount,
    refusal,
)

FEATURES = ("CDC_GENERATIONS_V2",)
_EVENTS = uuid.UUID("7b1c9c52-6f0e-5f0a-9d3e-2a6d3f1c8e47")


class JoinRequest(BaseModel):
    """A node that wants to join: either with `tokens` of its own (kept ascending) or with `num_tokens` to draw.

    Raises:
        pydantic.ValidationError: use `parse_join_request` for the platform's own error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_id: HostId
    address: Label
    datacenter: Label
    rack: Label
    shard_count: ShardCount
    ignore_msb: IgnoreMsb
    tokens: OptionalTokens = None
    num_tokens: OptionalNumTokens = None
    features: Names = FEATURES

    @model_validator(mode="after")
    def _one_way_to_name_tokens(self) -> Self:
        if (self.tokens is None) == (self.num_tokens is None):
            found = "neither tokens nor num_tokens is" if self.tokens is None else "both tokens and num_tokens are"
            raise ValueError(f"{found} there; give tokens to name them, or num_tokens to draw them")
        return self

    @property
    def event_id(self) -> str:
        """The UUID of this content: the same request, however its file is laid out, is the same event."""
        content = self.model_dump(mode="json")
        content["tokens"] = content["tokens"] and [str(token) for token in content["tokens"]]
        return str(uuid.uuid5(_EVENTS, json.dumps(content, sort_keys=True, separators=(",", ":"))))


def read_join_request(path: str | Path) -> JoinRequest:
    """The joining node that the JSON file at `path` describes.

    Raises:
        NotFound: there is no such file.
        InputError: it is no JSON, or a field is missing, unknown or out of its bounds.
    """
    return parse_join_request(read_text(Path(path)), str(path))


def parse_join_request(text: str, source: str = "bootstrap event") -> JoinRequest:
    """The joining node that a JSON text describes; `source` is what messages call the text.

    Raises:
        InputError: it is no JSON, or a field is missing, unknown or out of its bounds.
    """
    value = parse_json(text, source)
    if not isinstance(value, dict):
        mend = "; a ring snapshot is taken in by: cdc-platform import" if isinstance(value, list) else ""
        raise InputError(f"{source} has to be one JSON object that describes a node{mend}")
    try:
        return JoinRequest.model_validate(value)
    except ValidationError as error:
        raise refusal(error, source, tuple(JoinRequest.model_fields)) from None
