"""The row about generation alone: numpy relative to a plain loop over the same rules, on every core, without writes."""

from __future__ import annotations

import hashlib
import os
import uuid
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np

from bench import plain_loop
from bench.cluster import IGNORE_MSB, Size, ring_of
from bench.measure import Result, paired
from bench.session import Bench
from cdc_platform.generations import RingLayout, generate_streams

_GENERATION = uuid.UUID("6f2b7c3e-0d5a-4c58-9d0b-0a1f64a4c0de")
_prepared: list[tuple[RingLayout, list[int], list[int], int]] = []


def generating_alone(bench: Bench) -> list[Result]:
    """Generate all streams of a generation; both sides use the same worker processes and make the same bytes."""
    size, cores = bench.sizes.cluster, os.cpu_count() or 1
    ranges = size.nodes * size.vnodes
    cuts = np.linspace(0, ranges, cores + 1).astype(int).tolist()
    slices = list(pairwise(cuts))
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=_prepare, initargs=(size,)) as workers:
        same = list(workers.map(_digest_numpy, slices)) == list(workers.map(_digest_loop, slices))
        pairs = paired(
            lambda: list(workers.map(_numpy, slices)),
            lambda: list(workers.map(_loop, slices)),
            repeats=bench.sizes.repeats,
        )
    faster = 1 / pairs.ratio
    floor = "a plain Python loop over the rules"
    at = f"{size}, {cores} processes each side"
    details = {"same_bytes": same}
    return [
        Result("generating-alone", at, pairs.seconds, floor, pairs.floor_seconds, faster, 20.0, True, details=details)
    ]


def _prepare(size: Size) -> None:
    layout = RingLayout.of(ring_of(size))
    _prepared.append((layout, layout.range_starts.tolist(), layout.range_ends.tolist(), size.shards))


def _numpy(rows: tuple[int, int]) -> int:
    return len(generate_streams(_prepared[0][0], _GENERATION, *rows)[1])


def _loop(rows: tuple[int, int]) -> int:
    return len(_looped(rows))


def _looped(rows: tuple[int, int]) -> list[list[bytes]]:
    _, starts, ends, shards = _prepared[0]
    return plain_loop.generate(starts, ends, *rows, shards, IGNORE_MSB, _GENERATION)


def _digest_numpy(rows: tuple[int, int]) -> str:
    return hashlib.sha256(generate_streams(_prepared[0][0], _GENERATION, *rows)[1].tobytes()).hexdigest()


def _digest_loop(rows: tuple[int, int]) -> str:
    return hashlib.sha256(b"".join(stream for row in _looped(rows) for stream in row)).hexdigest()
