"""V1 and V2 generation IDs and their gossiped text."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.generations import GenerationId, parse_generation_id


@given(st.integers(0, 2**63 - 1), st.none() | st.uuids())
def test_ids_survive_their_text(time_ms: Milliseconds, uuid: UUID | None) -> None:
    """Parsing the gossiped text returns the generation ID."""
    known = GenerationId(time_ms, uuid)
    assert parse_generation_id(known.gossip_text) == known


def test_formats() -> None:
    """V1 is a timestamp alone; V2 has the timestamp and the UUID in lower case."""
    uuid = UUID("AB0D4E8C-0000-4000-8000-00000000000A")
    assert [GenerationId(Milliseconds(5)).gossip_text, GenerationId(Milliseconds(5)).format] == ["5", "v1"]
    assert GenerationId(Milliseconds(5), uuid).gossip_text == "v2;5;ab0d4e8c-0000-4000-8000-00000000000a"
    assert GenerationId(Milliseconds(5), uuid).format == "v2"
    assert str(GenerationId(Milliseconds(1_600_000_000_000), uuid)).endswith("(2020-09-13T12:26:40.000Z)")


def test_the_empty_text_is_no_generation() -> None:
    """A node without a generation gossips an empty text."""
    assert parse_generation_id("") is None


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "-5",
        "1.5",
        "\u0661",
        "v2",
        "v2;5",
        "v2;;ab0d4e8c-0000-4000-8000-00000000000a",
        "v2;x;ab0d4e8c-0000-4000-8000-00000000000a",
        "v2;5;no-uuid",
        "v2;5;{ab0d4e8c-0000-4000-8000-00000000000a}",
        "v3;5;ab0d4e8c-0000-4000-8000-00000000000a",
        "v2;5;ab0d4e8c-0000-4000-8000-00000000000a;",
        str(2**63),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A text in neither format raises an InputError."""
    with pytest.raises(InputError, match="generation"):
        parse_generation_id(text)
