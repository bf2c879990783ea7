"""A node that wants to join, as it is asked for: every field checked, and the same content always the same event."""

from __future__ import annotations

import json
import uuid
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from cdc_platform.records.node_fields import (
    Address,
    HostId,
    IgnoreMsb,
    Label,
    Names,
    OptionalNumTokens,
    OptionalTokens,
    ShardCount,
)

FEATURES = ("CDC_GENERATIONS_V2",)
_EVENTS = uuid.UUID("7b1c9c52-6f0e-5f0a-9d3e-2a6d3f1c8e47")


class JoinRequest(BaseModel):
    """A node that wants to join: either with `tokens` of its own (kept ascending) or with `num_tokens` to draw.

    A zero-token node has `tokens` [] or `num_tokens` 0.

    Raises:
        pydantic.ValidationError: `sources.bootstrap_file` makes the platform's own error of it.
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
    features: Names = FEATURES

    @model_validator(mode="after")
    def _one_way_to_name_tokens(self) -> Self:
        if (self.tokens is None) == (self.num_tokens is None):
            found = "neither tokens nor num_tokens is" if self.tokens is None else "both tokens and num_tokens are"
            raise ValueError(f"{found} there; give tokens to name them, or num_tokens to draw them")
        return self

    @property
    def is_zero_token(self) -> bool:
        """Return True if the node owns no tokens: it makes no generation, and waits in no inbox."""
        return not self.tokens and not self.num_tokens

    @property
    def event_id(self) -> str:
        """The UUID of this content: the same request, however its file is laid out, is the same event."""
        content = self.model_dump(mode="json")
        content["tokens"] = content["tokens"] and [str(token) for token in content["tokens"]]
        return str(uuid.uuid5(_EVENTS, json.dumps(content, sort_keys=True, separators=(",", ":"))))
