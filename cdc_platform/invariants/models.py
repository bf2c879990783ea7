"""The pandera models: of the facts of ranges, and of summaries. Their checks are the declared invariants.

They are pandera's pandas models, on purpose: what they judge is in the memory of a process, a row a range or a line an
invariant. The same model of a summary as a pandera.pyspark one takes 12 Spark jobs and 1.3 s. Loaded where something
is judged and nowhere else: pandera and pandas take longer to import than a look-up to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cdc_platform.invariants.families import Invariant
from cdc_platform.invariants.findings import DECLARED, SHOWN
from cdc_platform.ring.tokens import Bools

IN_RANGES = tuple(each for each in DECLARED.values() if each.in_range is not None)
"""The invariants that the facts of each range tell."""
_COUNTED = dict.fromkeys(
    name
    for each in IN_RANGES
    if each.in_range
    for name in (each.in_range.among, each.in_range.wrong, each.in_range.unjudged)
    if name is not None
)
FACTS = ("generation", "range_end", "index", "streams", *_COUNTED)
"""The columns of facts, int64, a row a range."""
JUDGED = {each.in_range.wrong: each for each in IN_RANGES if each.in_range is not None}
"""Those of them that count what breaks an invariant, with it: the columns of the model of facts, and no others.

A column costs pandera a fifth of a millisecond whether anything is asked of it or not.
"""


@cache
def facts_model() -> Any:
    """The model of the facts of ranges: nothing is counted that breaks an invariant."""
    import pandera.pandas as pa

    columns = {name: _numbers(_nothing_wrong(invariant)) for name, invariant in JUDGED.items()}
    return pa.DataFrameSchema(columns, strict=True, ordered=True, name="facts of ranges")


@cache
def summary_model(expected: tuple[str, ...]) -> Any:
    """The model of a summary in which each of the `expected` invariants has one line, of which something was looked at
    and nothing is wrong, and no other has any.
    """
    import pandera.pandas as pa

    return pa.DataFrameSchema(
        {
            # Of texts pandera would look at each; whether they are ours, the check says.
            "invariant": pa.Column(object, pa.Check.isin(expected)),
            "population": _numbers(),
            "violations": _numbers(),
        },
        checks=[_held(DECLARED[name]) for name in expected],
        strict=True,
        ordered=True,
        name="summary",
    )


@dataclass(frozen=True, eq=False)
class Failure:
    """A check that a frame fails: the invariant whose check it is, or None, and the `rows` (bool[n]) that fail it."""

    invariant: str | None
    rows: Bools


def failures(model: Any, columns: Mapping[str, Any]) -> list[Failure]:
    """What pandera finds wrong with a frame of these columns, every check looked at. Of a frame that is none of the
    model at all every row fails; so do those of a check of the whole frame.
    """
    import pandas as pd
    from pandera.config import ValidationDepth, config_context
    from pandera.errors import SchemaErrors

    frame = pd.DataFrame(dict(columns))
    try:
        # Validation can be switched off by the environment; what nobody validated must not pass.
        with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
            model.validate(frame, lazy=True, inplace=True)
    except SchemaErrors as found:
        return [_failure(error, len(frame)) for error in found.schema_errors]
    return []


def _failure(error: Any, rows: int) -> Failure:
    name = getattr(error.check, "name", None)
    told = np.asarray(error.check_output)
    by_row = told.dtype == bool and told.shape == (rows,)
    return Failure(name if name in DECLARED else None, np.logical_not(told) if by_row else np.ones(rows, dtype=bool))


def load() -> None:
    """Import what judging takes and make the model of facts: for a process whose forks will judge."""
    failures(facts_model(), dict.fromkeys(JUDGED, np.empty(0, dtype=np.int64)))


def _numbers(check: Any = None) -> Any:
    """A column of the type int64, which has no nulls: to look for them is a fifth of the time."""
    import pandera.pandas as pa

    return pa.Column("int64", check, nullable=True)


def _nothing_wrong(invariant: Invariant) -> Any:
    import pandera.pandas as pa

    return pa.Check.eq(0, **_told(invariant), n_failure_cases=SHOWN, ignore_na=False)


def _held(invariant: Invariant) -> Any:
    import pandera.pandas as pa

    return pa.Check(_holds(invariant), **_told(invariant))


def _told(invariant: Invariant) -> dict[str, Any]:
    """What pandera says of an invariant's check."""
    return {"name": str(invariant), "title": str(invariant), "description": invariant.meaning}


def _holds(invariant: str) -> Callable[[Any], bool]:
    def holds(summary: Any) -> bool:
        # A comparison of columns by pandas takes a hundred times as long as one of their values.
        mine = summary["invariant"].to_numpy() == invariant
        judged, wrong = (summary[name].to_numpy()[mine] for name in ("population", "violations"))
        return len(judged) == 1 and bool(judged[0] > 0 and wrong[0] == 0)

    return holds
