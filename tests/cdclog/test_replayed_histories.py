"""The property that proves the whole: scripts of CQL on any table, the replay of their logs, and a model agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.histories.log_histories import schemas
from support.histories.log_statements import OPTIONS, Written, definition, drawn_of, scripts
from support.oracles.log_model import ModelPartition

from cdc_platform.cdclog import Operation, Script, StatementOutcome, TouchedTable
from cdc_platform.clock import Microseconds, parse_time_us
from cdc_platform.cql import ListType, TableSchema, parse_statements
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings

NOW_US = parse_time_us("2020-11-26T12:00:00Z")

tables = st.sampled_from(OPTIONS).flatmap(schemas)
histories = tables.flatmap(lambda schema: st.tuples(st.just(schema), scripts(schema, Microseconds(NOW_US - 3), NOW_US)))


def _expected(schema: TableSchema, models: dict[tuple, ModelPartition]) -> list[dict[str, Any]]:
    """Return the rows of SELECT * by the model, in any order."""
    rows = []
    for partition, model in models.items():
        selected = model.select(Microseconds(0))
        static = selected.pop(None, {})
        alive = {key: row for key, row in selected.items() if key is not None}
        keyed = dict(zip((column.name for column in schema.partition_key), partition, strict=True))
        live_rows = [
            keyed | dict(zip((column.name for column in schema.clustering_key), key, strict=True)) | static | row
            for key, row in alive.items()
        ]
        rows += live_rows or ([keyed | static] if static else [])
    return [{column.name: _json_value(column.type, row.get(column.name)) for column in schema.columns} for row in rows]


def _json_value(kind: Any, value: Any) -> Any:
    """Return a model's value in its JSON form."""
    if isinstance(kind, ListType) and kind.multicell and value is not None:
        # Version 1 UUIDs sort by time first; equal times sort by the remaining bytes as signed.
        order = sorted(value, key=lambda key: (key.time, [byte - 256 * (byte > 127) for byte in key.bytes[8:]]))
        return [value[key] for key in order]
    if isinstance(value, dict):
        if hasattr(kind, "fields"):
            value = tuple(value.get(n) for n in range(3))
        else:
            value = tuple(value if type(kind).__name__ == "SetType" else value.items())
    return kind.json(value)


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


DRAWN = (
    *("a null", "an empty collection", "a doubled collection", "a tie", "a late write", "a static column"),
    *("an image", "changed options", "INSERT (done)", "INSERT (not applied)", "UPDATE (not applied)"),
    *("DELETE (done)", "DELETE (not applied)", "BATCH (done)"),
)
"""The kinds of statements that a run of many histories has to contain."""
_MANY = 1000


@pytest.mark.long("hundreds of random histories, judged after each statement")
def test_base_and_replay_equal_the_model_at_every_prefix(streams_home: Path, request: pytest.FixtureRequest) -> None:
    """After every statement the table, the replay of its log and the model are equal; all kinds of statements occur."""
    tally: Counter[str] = Counter()

    @settings(settings.get_profile("histories"))
    @given(history=histories)
    def judge(history: tuple[TableSchema, list[Written]]) -> None:
        _judge(Script(Lake(streams_home / "lake"), Settings(), NOW_US), *history, tally)
        tally["histories"] += 1

    judge()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.items()) if kind != "histories")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    # Printed with -q as well.
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        print(f"\n{tally['histories']} histories equal the model; statements: {kinds}")
    # The rarest kind occurs in one history of a hundred.
    assert tally["histories"] < _MANY or [kind for kind in DRAWN if not tally[kind]] == []


def _judge(script: Script, schema: TableSchema, written: list[Written], tally: Counter[str]) -> None:
    result = script.run(parse_statements(definition(schema)))
    assert [str(statement.error) for statement in result.outcomes if statement.error] == []
    models: dict[tuple, ModelPartition] = {}
    logged_models: dict[tuple, ModelPartition] = {}
    is_logged = True
    for index, statement in enumerate(written):
        result = script.run(parse_statements(statement.text))
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
        tally.update(drawn_of(statement, written[:index]) | _describe_outcomes(result.outcomes))
        is_logged = is_logged if statement.logs is None else statement.logs
        if _applies(models, statement, result.outcomes[0]):
            for mutation in statement.mutations:
                for model_set in (models, logged_models) if is_logged else (models,):
                    model_set.setdefault(mutation.partition_key, _empty_model(schema)).apply(mutation)
        (table,) = result.tables
        assert isinstance(table, TouchedTable)
        assert _sorted(table.base) == _sorted(_expected(schema, models))
        assert (table.replayed is None) == (not is_logged)
        if table.replayed is not None:
            assert _sorted(table.replayed) == _sorted(_expected(schema, logged_models))


def _describe_outcomes(outcomes: Sequence[StatementOutcome]) -> set[str]:
    """Return the outcomes of statements by kind, and whether they have images."""
    logged = {row["cdc$operation"] for outcome in outcomes for row in outcome.rows}
    outcome_names = {f"{outcome.statement.kind} ({outcome.became})" for outcome in outcomes}
    return outcome_names | ({"an image"} if logged & {Operation.PRE_IMAGE, Operation.POST_IMAGE} else set())


def _empty_model(schema: TableSchema) -> ModelPartition:
    return ModelPartition(
        {column.name: column.type for column in schema.columns},
        tuple(column.descending for column in schema.clustering_key),
    )


def _applies(models: dict[tuple, ModelPartition], written: Written, outcome: StatementOutcome) -> bool:
    """Return True if a statement takes effect; a conditional one needs its row present, or absent, in the model."""
    if written.asks is None:
        return True
    partition, key, exists = written.asks
    is_present = partition in models and key in models[partition].select(0)
    applied = is_present == exists
    assert outcome.became == ("done" if applied else "not applied")
    assert applied or outcome.rows == []
    return applied
