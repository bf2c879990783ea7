"""Which V1 generations are too old for a rewrite: by the vectors, and by the documentation's sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.clock import Milliseconds, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import LogLifetime, get_oldest_live_ms, may_have_live_rows

times = st.lists(st.integers(0, 400), unique=True, max_size=12).map(sorted)
logs = st.lists(st.builds(LogLifetime, st.integers(0, 300), st.integers(0, 400)), min_size=1, max_size=4)


def selected(generations: list[int], tables: list[LogLifetime], now: Milliseconds, **options: Any) -> list[int]:
    """Return the generations that the rule selects."""
    mask = may_have_live_rows(generations, tables, now, **options)
    return [time for time, is_selected in zip(generations, mask.tolist(), strict=True) if is_selected]


def test_the_refinement_equals_the_vectors(vectors: dict[str, Any]) -> None:
    """With creation times and a margin of ten seconds, the selection equals every vector, given in seconds."""
    for vector in vectors["rewrite_v1_selection_seconds"]:
        tables = [LogLifetime(table["ttl"] * 1000, table["creation"] * 1000) for table in vector["tables"]]
        generations = [us_from_ms(time) for time in vector["generations"]]
        rewritten = selected(
            generations, tables, us_from_ms(vector["now"]), use_creation_time=True, clock_margin_ms=10_000
        )
        assert rewritten == [us_from_ms(time) for time in vector["rewritten"]], vector


@given(times, logs, st.integers(0, 800))
def test_the_default_is_the_documents_sentence(generations: list[int], tables: list[LogLifetime], now: int) -> None:
    """Too old: for some later timestamp T, `now - ttl > T` for every table; with a TTL of 0 nothing expires."""
    expected = [
        time
        for time in generations
        if not any(
            all(table.ttl_ms != 0 and now - table.ttl_ms > later for table in tables)
            for later in generations
            if later > time
        )
    ]
    assert selected(generations, tables, Milliseconds(now)) == expected


@given(times, logs, st.integers(0, 800), st.integers(0, 50))
def test_the_refinement_is_the_servers_rule(
    generations: list[int], tables: list[LogLifetime], now: int, margin: int
) -> None:
    """Select the last generation at or before the smallest limit, and all after it."""
    limit = min(
        max(table.created_at_ms or 0, now - table.ttl_ms if table.ttl_ms else -(2**62)) - margin for table in tables
    )
    first = next((index for index, time in enumerate(generations) if time > limit), len(generations))
    expected = generations[max(first - 1, 0) :]
    assert selected(generations, tables, Milliseconds(now), use_creation_time=True, clock_margin_ms=margin) == expected


@given(times, logs, st.integers(0, 800), st.booleans(), st.integers(0, 50))
def test_rewritten_generations_are_a_tail_with_the_newest(
    generations: list[int], tables: list[LogLifetime], now: int, creation: bool, margin: int
) -> None:
    """The newest generation is always rewritten, and none between two rewritten generations is skipped."""
    rewritten = selected(generations, tables, Milliseconds(now), use_creation_time=creation, clock_margin_ms=margin)
    assert rewritten == generations[len(generations) - len(rewritten) :]
    assert bool(rewritten) == bool(generations)


def test_at_the_limit_the_two_rules_differ() -> None:
    """The documentation says `now - ttl > T`; the servers include the limit itself, with a margin before it."""
    table = LogLifetime(ttl_ms=Milliseconds(500), created_at_ms=Milliseconds(0))
    assert selected([100, 500], [table], Milliseconds(1000)) == [100, 500]
    assert selected([100, 500], [table], Milliseconds(1001)) == [500]
    assert selected([100, 500], [table], Milliseconds(1000), use_creation_time=True) == [500]
    assert selected([100, 500], [table], Milliseconds(1000), clock_margin_ms=1) == [100, 500]


def test_without_tables_nothing_is_retained() -> None:
    """Without logged tables no generation is needed, even if it exists."""
    assert selected([1, 2, 3], [], Milliseconds(10)) == []


def test_a_log_that_never_expires_retains_everything() -> None:
    """With a TTL of 0, rows since the beginning are live; with a creation time, rows since then."""
    assert (
        get_oldest_live_ms(
            [LogLifetime(Milliseconds(0), Milliseconds(700)), LogLifetime(Milliseconds(10), Milliseconds(0))],
            Milliseconds(1000),
        )
        is None
    )
    assert (
        get_oldest_live_ms(
            [LogLifetime(Milliseconds(0), Milliseconds(700))],
            Milliseconds(1000),
            use_creation_time=True,
            clock_margin_ms=Milliseconds(5),
        )
        == 695
    )


@pytest.mark.parametrize(
    ("generations", "tables", "margin"),
    [
        ([2, 1], [LogLifetime(Milliseconds(1), Milliseconds(0))], 0),
        ([1, 1], [LogLifetime(Milliseconds(1), Milliseconds(0))], 0),
        ([1], [LogLifetime(Milliseconds(-1), Milliseconds(0))], 0),
        ([1], [], -1),
    ],
)
def test_nonsense_is_refused(generations: list[int], tables: list[LogLifetime], margin: Milliseconds) -> None:
    """Times out of order, negative TTLs and a negative margin are refused."""
    with pytest.raises(InputError):
        may_have_live_rows(generations, tables, Milliseconds(10), clock_margin_ms=margin)
