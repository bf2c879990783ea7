"""What every source of streams answers, whichever kind it is: generations of vnodes, or a table's tablets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.errors import WriteRefused
from cdc_platform.generations import Decision, Policy, Verdict
from cdc_platform.timeline.periods import Period

StreamsOf = Callable[[pa.Array, pa.Array], pa.Array]
"""From keys (binary, serialized) and timestamps (int64, µs) to stream IDs (binary, null where there is none)."""


class Answer(Protocol):
    """What `explain` says of one write."""

    @property
    def accepted(self) -> bool:
        """Whether a coordinator takes the write now."""
        ...

    def facts(self) -> dict[str, Any]:
        """The answer in plain values by name, in the order in which people read it."""
        ...


class StreamSource(Protocol):
    """Which stream the writes to a table get. It says what held when it was made; ask a new one for what holds now."""

    @property
    def in_generations(self) -> bool:
        """Whether the log's rows lie in streams of generations, so that the policy counts and they hold these."""
        ...

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> Decision:
        """The verdict on a write of this timestamp (µs) by a coordinator whose clock shows `now_us`."""
        ...

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """The stream ID (16 bytes) of a write of a token.

        Raises:
            WriteRefused: the write is not accepted; its verdict and message say why and what to do.
            StateError: the stream cannot be told.
        """
        ...

    def explain(self, token: int, at_us: Microseconds, now_us: Microseconds, policy: Policy | None = None) -> Answer:
        """Where a write of a token with timestamp `at_us` (µs) goes, accepted or not, and why not."""
        ...

    def finder(self) -> StreamsOf:
        """The streams of many writes; it may travel to executors and reads descriptions where it runs.

        Whether a coordinator would have accepted the writes is not asked: the past is looked up. But a stream that the
        decision on a switch may still change is refused as everywhere: WriteRefused, UNDECIDED.

        Raises:
            StateError: a generation has no ID so that its description cannot be read, or a stream set is damaged.
        """
        ...

    def periods(self) -> Sequence[Period]:
        """When which streams operate, oldest first."""
        ...

    def is_complete(self, begin_us: Microseconds) -> bool:
        """Whether the streams of the period that begins then (µs) are all there for readers."""
        ...


def assert_accepted(decision: Decision) -> None:
    """Hold that a write is accepted.

    Raises:
        WriteRefused: it is not.
    """
    if decision.verdict is not Verdict.OK:
        raise WriteRefused(decision.verdict, decision.reason)
