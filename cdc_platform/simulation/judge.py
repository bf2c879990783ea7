"""The judge of a history: it sees every observation, shares no code with the nodes, and names what is violated.

Its model is small: a write belongs to the committed generation with the greatest timestamp at or before its own, and
every accepted row is read once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cdc_platform.clock import MINUTE_US, Microseconds, us_from_ms
from cdc_platform.simulation.observations import (
    AcceptedRow,
    Advanced,
    Committed,
    Decided,
    Learned,
    Observation,
    Read,
    RefusedWrite,
    Removed,
    SimulatedGeneration,
    Stored,
)


class Property(StrEnum):
    """The safety properties, and one of liveness (the last). `meaning` says when a property holds."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Property:
        """Create a member from its value and its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    RIGHT_GENERATION = (
        "right-generation",
        "Every accepted write lies in a stream of the generation that operates at its timestamp, as finally committed.",
    )
    ONE_PLACEMENT = (
        "one-placement",
        "No two nodes place the same key and timestamp differently.",
    )
    READ_ONCE = (
        "read-once",
        "Every accepted row is read exactly once before it expires.",
    )
    READ_IN_ORDER = (
        "read-in-order",
        "The rows of each key are read in the order of their timestamps.",
    )
    LAST_ROW_READ = (
        "last-row-read",
        "The reader leaves no generation before its last row has appeared.",
    )
    STREAMS_FIRST = (
        "streams-first",
        "No generation's timestamp is published before its streams.",
    )
    EXPIRED_UNNEEDED = (
        "expired-unneeded",
        "No generation is removed that has live or unread rows.",
    )
    ONE_DECISION = (
        "one-decision",
        "No switch is decided twice.",
    )
    ALL_LEARN = (
        "all-learn",
        "Once faults have ended, every node learns the newest generation, and no switch stays undecided.",
    )


@dataclass(frozen=True)
class Violation:
    """A property that does not hold, when (µs since 1970 UTC), at which node (None: none) and what was seen."""

    property: Property
    at_us: Microseconds
    node: int | None
    text: str


@dataclass(frozen=True)
class Nodes:
    """What the judge knows of the nodes: by number their tokens; and the streams of each generation.

    `tablets`: the table has tablets, so that the number of a stream set and not a ring routes a write.
    """

    tokens: Sequence[Sequence[int]]
    streams: Callable[[SimulatedGeneration], frozenset[bytes]]
    tablets: bool = False


@dataclass(frozen=True)
class Verdict:
    """The judgement on one history. Times and durations in µs.

    `refused` counts writes by verdict. `outage_us` is the longest run of refused writes at one node, those with
    timestamps from the future or the past aside. `apart` counts
    accepted writes whose log row lay in another vnode than the base row, `apart_us` for how long that happened.
    `missed` rows were not read. `read_lag_us` is the longest time from a row to its reading in the minute after a
    generation began, None if nothing was read then. `learn_us` is the longest time from a commit until the last node
    that was up learned of it, None if nothing was committed.
    """

    violations: tuple[Violation, ...]
    writes: int
    refused: Mapping[str, int]
    outage_us: Microseconds
    apart: int
    apart_us: Microseconds
    missed: int
    read_lag_us: Microseconds | None
    learn_us: Microseconds | None
    generations: int

    @property
    def refused_share(self) -> float:
        """Return the share of writes that were refused."""
        refused = sum(self.refused.values())
        return refused / (self.writes + refused) if refused else 0.0

    @property
    def broken(self) -> frozenset[Property]:
        """Return the properties that do not hold."""
        return frozenset(violation.property for violation in self.violations)


@dataclass
class Judge:
    """Observes a history step by step; `finish` returns the verdict.

    `replicas` is how many nodes store the tables; `ttl_us` 0: rows never expire. A row that is older than `overdue_us`
    at the end must have been read.
    """

    nodes: Nodes
    replicas: int
    ttl_us: Microseconds = Microseconds(0)
    overdue_us: Microseconds = MINUTE_US * 2
    violations: list[Violation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._committed: dict[int, SimulatedGeneration] = {}
        self._committed_at: dict[int, Microseconds] = {}
        self._learned: dict[int, dict[int, Microseconds]] = defaultdict(dict)
        self._accepted: dict[int, AcceptedRow] = {}
        self._refused: list[RefusedWrite] = []
        self._read_at: dict[int, Microseconds] = {}
        self._last_read: dict[int, int] = {}
        self._placed: dict[tuple[int, int], AcceptedRow] = {}
        self._streams_stored: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._decided: dict[int, int | None] = {}
        self._position_us: int = 0
        self._positions: list[tuple[int, Microseconds]] = []
        self._left: dict[int, Microseconds] = {}
        self._removed: set[int] = set()
        self._ends: dict[int, list[int]] = {}

    def observe(self, observation: Observation) -> None:
        """Judge the next observation by what was seen before."""
        match observation:
            case AcceptedRow():
                self._accept(observation)
            case RefusedWrite():
                self._refused.append(observation)
            case Read():
                self._read(observation)
            case Advanced():
                self._position_us = observation.position_us
                self._positions.append((observation.position_us, observation.at_us))
                self._left[observation.generation_us] = observation.at_us
            case Stored():
                self._store(observation)
            case Removed():
                self._remove(observation)
            case Committed():
                self._committed[observation.generation.number] = observation.generation
                self._committed_at.setdefault(observation.generation.number, observation.at_us)
            case Learned():
                self._learned[observation.node].setdefault(observation.generation, observation.at_us)
            case Decided():
                self._decide(observation)
            case _:
                pass

    def finish(self, now_us: Microseconds, up: Sequence[int], undecided: bool) -> Verdict:
        """Judge the whole history at its end; `up` are the nodes that run and belong to the ring then."""
        self._judge_generations()
        missed = self._judge_reading(now_us)
        learn_us = self._judge_learning(now_us, up, undecided)
        apart = [row for row in self._accepted.values() if self._is_apart(row)]
        apart_us = max((row.at_us for row in apart), default=0) - min((row.at_us for row in apart), default=0)
        return Verdict(
            tuple(sorted(self.violations, key=lambda violation: violation.at_us)),
            len(self._accepted),
            dict(sorted(Counter(refused.verdict for refused in self._refused).items())),
            self._longest_outage(),
            len(apart),
            Microseconds(apart_us),
            missed,
            self._read_lag(),
            learn_us,
            len(self._committed) - 1,
        )

    # Step by step.

    def _violate(self, property: Property, at_us: Microseconds, node: int | None, text: str) -> None:
        self.violations.append(Violation(property, at_us, node, text))

    def _accept(self, row: AcceptedRow) -> None:
        self._accepted[row.row] = row
        other = self._placed.setdefault((row.token, row.ts_us), row)
        if other.stream != row.stream:
            text = f"the write of {row.token} at {row.ts_us} is in another stream than at node {other.node}"
            self._violate(Property.ONE_PLACEMENT, row.at_us, row.node, text)

    def _read(self, read: Read) -> None:
        row = self._accepted[read.row]
        if read.row in self._read_at:
            self._violate(Property.READ_ONCE, read.at_us, row.node, f"row {read.row} is read twice")
        self._read_at[read.row] = read.at_us
        if row.ts_us < self._last_read.get(row.token, row.ts_us):
            self._violate(Property.READ_IN_ORDER, read.at_us, row.node, f"row {read.row} is read after a later one")
        self._last_read[row.token] = row.ts_us

    def _store(self, stored: Stored) -> None:
        by_replica = self._streams_stored[stored.generation]
        if stored.table == "streams":
            by_replica[stored.replica].add(stored.batch)
            self._batches = stored.batches
            return
        complete = sum(len(batches) == self._batches for batches in by_replica.values())
        if complete <= self.replicas // 2:
            text = f"generation {stored.generation} is published while {complete} replicas have its streams"
            self._violate(Property.STREAMS_FIRST, stored.at_us, stored.replica, text)

    def _remove(self, removed: Removed) -> None:
        self._removed.add(removed.generation)
        generation = self._committed[removed.generation]
        streams = self.nodes.streams(generation)
        for row in self._accepted.values():
            if row.stream not in streams:
                continue
            lives = not self.ttl_us or row.visible_us + self.ttl_us > removed.at_us
            if lives:
                text = f"generation {removed.generation} is removed while row {row.row} lives"
                self._violate(Property.EXPIRED_UNNEEDED, removed.at_us, None, text)
                return
        successors = [each.time_ms for each in self._committed.values() if each.time_ms > generation.time_ms]
        if not successors or self._position_us < us_from_ms(min(successors)) - 1:
            text = f"generation {removed.generation} is removed before the reader has finished it"
            self._violate(Property.EXPIRED_UNNEEDED, removed.at_us, None, text)

    def _decide(self, decided: Decided) -> None:
        earlier = self._decided.setdefault(decided.generation, decided.time_ms)
        if earlier != decided.time_ms:
            text = f"the switch to generation {decided.generation} is decided twice"
            self._violate(Property.ONE_DECISION, decided.at_us, None, text)

    # At the end.

    def _judge_generations(self) -> None:
        """Compare each accepted write with the generation that operates at its timestamp."""
        generations = sorted(self._committed.values(), key=lambda each: (each.time_ms, each.number))
        begins = [us_from_ms(generation.time_ms) for generation in generations]
        streams = [self.nodes.streams(generation) for generation in generations]
        for row in self._accepted.values():
            index = bisect_right(begins, row.ts_us) - 1
            if index < 0 or row.stream not in streams[index]:
                due = "none" if index < 0 else str(generations[index].number)
                text = f"row {row.row} with timestamp {row.ts_us} is not in generation {due}, which operates then"
                self._violate(Property.RIGHT_GENERATION, row.at_us, row.node, text)

    def _judge_reading(self, now_us: Microseconds) -> int:
        """Return how many rows up to the reader's position were not read, and judge each."""
        missed = 0
        generations = {generation.number: self.nodes.streams(generation) for generation in self._committed.values()}
        for row in self._accepted.values():
            if row.row in self._read_at:
                continue
            if row.ts_us > self._position_us:
                if max(row.ts_us, row.visible_us) < now_us - self.overdue_us:
                    text = f"the reader has not reached row {row.row} at the end"
                    self._violate(Property.READ_ONCE, now_us, row.node, text)
                continue
            passed_us = self._positions[bisect_left(self._positions, (row.ts_us, Microseconds(0)))][1]
            if self.ttl_us and passed_us >= row.visible_us + self.ttl_us:
                continue
            missed += 1
            self._violate(Property.READ_ONCE, row.visible_us, row.node, f"row {row.row} is never read")
            number = next((number for number, streams in generations.items() if row.stream in streams), None)
            if number is None:
                continue
            left_us = self._left.get(us_from_ms(self._committed[number].time_ms))
            ended = self._position_us >= self._end_us(number)
            if ended and left_us is not None and row.visible_us > left_us:
                text = f"row {row.row} appears after the reader has left generation {number}"
                self._violate(Property.LAST_ROW_READ, row.visible_us, row.node, text)
        return missed

    def _end_us(self, number: int) -> int:
        begin = self._committed[number].time_ms
        return min(
            (us_from_ms(each.time_ms) for each in self._committed.values() if each.time_ms > begin), default=2**63
        )

    def _judge_learning(self, now_us: Microseconds, up: Sequence[int], undecided: bool) -> Microseconds | None:
        if undecided:
            self._violate(Property.ALL_LEARN, now_us, None, "a switch is undecided at the end")
        newest = max(self._committed.values(), key=lambda each: (each.time_ms, each.number))
        for node in up:
            if newest.number not in self._learned[node] and newest.number != 0:
                text = f"node {node} does not know generation {newest.number} at the end"
                self._violate(Property.ALL_LEARN, now_us, node, text)
        took = [
            at_us - self._committed_at[number]
            for node in up
            for number, at_us in self._learned[node].items()
            if number in self._committed_at and number != 0
        ]
        return Microseconds(max(took)) if took else None

    # Counted.

    def _is_apart(self, row: AcceptedRow) -> bool:
        """Return True if a write's stream lies in another vnode or tablet, of those that route it, than its token."""
        ends = self._tablet_ends(row.routed) if self.nodes.tablets else _sorted_tokens(self.nodes, row.routed)
        stream_token = _token_of(row.stream)
        return bisect_left(ends, row.token) % len(ends) != bisect_left(ends, stream_token) % len(ends)

    def _tablet_ends(self, number: int) -> list[int]:
        """Return the last tokens of the tablets of a stream set, ascending: those of its streams."""
        if number not in self._ends:
            self._ends[number] = sorted(map(_token_of, self.nodes.streams(self._committed[number])))
        return self._ends[number]

    def _longest_outage(self) -> Microseconds:
        """Return the longest time in which a node refused every write, not counting those with wrong timestamps."""
        by_node: dict[int, list[tuple[Microseconds, bool]]] = defaultdict(list)
        for row in self._accepted.values():
            by_node[row.node].append((row.at_us, True))
        for refused in self._refused:
            if refused.verdict not in ("FUTURE", "PAST"):
                by_node[refused.node].append((refused.at_us, False))
        longest = 0
        for writes in by_node.values():
            since: int | None = None
            for at_us, taken in sorted(writes):
                if taken:
                    since = None
                else:
                    since = at_us if since is None else since
                    longest = max(longest, at_us - since)
        return Microseconds(longest)

    def _read_lag(self) -> Microseconds | None:
        begins = [int(us_from_ms(generation.time_ms)) for generation in self._committed.values() if generation.number]
        lags = [
            read_us - self._accepted[row].at_us
            for row, read_us in self._read_at.items()
            if any(0 <= int(self._accepted[row].ts_us) - begin < MINUTE_US for begin in begins)
        ]
        return Microseconds(max(lags)) if lags else None


def _token_of(stream: bytes) -> int:
    return int.from_bytes(stream[:8], "big", signed=True)


_RINGS: dict[tuple[int, int], tuple[Nodes, list[int]]] = {}
_MOST_RINGS = 1000


def _sorted_tokens(nodes: Nodes, mask: int) -> list[int]:
    """Return the tokens of the nodes in a mask, ascending."""
    key = (id(nodes), mask)
    known = _RINGS.get(key)
    if known is None or known[0] is not nodes:
        if len(_RINGS) >= _MOST_RINGS:
            _RINGS.clear()
        tokens = sorted(token for number, own in enumerate(nodes.tokens) if mask >> number & 1 for token in own)
        known = _RINGS[key] = (nodes, tokens)
    return known[1]
