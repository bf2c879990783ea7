"""The rows about applied scripts: relative to the lexer alone, with ten times the statements, and after many others.

Seconds are CPU of this process, which does all the work: a script runs for minutes, during which other work varies.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from lark import Lark

from bench.base_writes import five_generations
from bench.measure import Result, own_cpu_seconds, watched_memory
from bench.session import QUICK, Bench
from cdc_platform.cdclog import commit_script
from cdc_platform.clock import MINUTE_US, Clock, Microseconds, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings
from cdc_platform.timeline import Timeline

_STATEMENTS = int(os.environ.get("CDC_PLATFORM_BENCH_STATEMENTS", "100000"))
_QUICK_STATEMENTS = 1_000
_TABLE = """CREATE TYPE ks.u (a int, b text);
CREATE TABLE ks.t (p int, c int, s int static, a int, b text, d double, m map<int, text>, e set<int>, l list<int>,
    u u, f frozen<map<int, int>>, PRIMARY KEY (p, c)) WITH cdc = {'enabled': true};
"""
_SHAPES = (
    "INSERT INTO ks.t (p, c, a, b) VALUES (@, 1, @, 'text @');",
    "INSERT INTO ks.t (p, c, a) VALUES (@, 2, @) USING TTL 86400;",
    "INSERT INTO ks.t (p, c, m) VALUES (@, 3, {1: 'a', 2: 'b'});",
    'INSERT INTO ks.t JSON \'{"p": @, "c": 4, "b": "x"}\';',
    "INSERT INTO ks.t (p, s) VALUES (@, @);",
    "UPDATE ks.t SET a = @, b = null WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET d = 0.5 WHERE p = @ AND c IN (1, 2);",
    "UPDATE ks.t SET m[@] = 'v' WHERE p = @ AND c = 3;",
    "UPDATE ks.t SET m = m - {1} WHERE p = @ AND c = 3;",
    "UPDATE ks.t SET e = e + {@, 1} WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET l = l + [@, 2] WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET l = [@] + l WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET u.a = @ WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET f = {1: @} WHERE p = @ AND c = 1;",
    "UPDATE ks.t SET s = @ WHERE p = @;",
    "DELETE a FROM ks.t WHERE p = @ AND c = 1;",
    "DELETE FROM ks.t WHERE p = @ AND c = 2;",
    "DELETE FROM ks.t WHERE p = @ AND c > 7;",
    "DELETE FROM ks.t WHERE p = @;",
    "BEGIN BATCH UPDATE ks.t SET a = 1 WHERE p = @ AND c = 8; DELETE b FROM ks.t WHERE p = @ AND c = 1; APPLY BATCH;",
)


def log_keep(bench: Bench) -> list[Result]:
    """Apply scripts of twenty shapes; measure the time as a multiple of the lexer's, and its growth."""
    count = _QUICK_STATEMENTS if bench.sizes is QUICK else _STATEMENTS
    with bench.scratch() as folder:
        small, few, least = _kept(bench, folder / "small", count // 10)
        large, many, most = _kept(bench, folder / "large", count)
        text = _script(count)
        lexer = Lark(files("cdc_platform.cql").joinpath("grammar.lark").read_text(encoding="utf-8"), parser="lalr")
        floor = own_cpu_seconds(lambda: sum(1 for _ in lexer.lex(text)))
        one_small, one_large = _one_more(few), _one_more(many)
    at = f"{count:,} statements of {len(_SHAPES)} shapes"
    behind = f"one statement, on what {count:,} have written"
    tenth = "a tenth of the statements"
    return [
        Result("log-keep", at, large, "the lexer alone over the same text", floor, large / floor, 3),
        Result("log-keep-growth", at, large, tenth, small, large / small, 11),
        Result("log-keep-memory", f"{at}; peak of the process", large, tenth, small, most / least, 2),
        Result("log-keep-next", behind, one_large, tenth, one_small, one_large / one_small, 2),
    ]


def _script(count: int) -> str:
    """Return `count` statements; every twenty of them write to a new partition."""
    statements = (_SHAPES[index % len(_SHAPES)].replace("@", str(index // len(_SHAPES))) for index in range(count))
    return _TABLE + "\n".join(statements)


def _kept(bench: Bench, folder: Path, count: int) -> tuple[float, Lake, int]:
    """Return the CPU seconds, the lake, and the peak memory (bytes) of the process in the meantime."""
    lake, text = five_generations(bench, folder), _script(count)
    with watched_memory(os.getpid()) as memory:
        spent = own_cpu_seconds(lambda: _keep(lake, text, 0))
    return spent, lake, memory.peak


def _one_more(lake: Lake) -> float:
    """Return the seconds of the second of two statements, since the first may read what both read."""
    spent = [
        own_cpu_seconds(
            lambda number=turn: _keep(lake, f"UPDATE ks.t SET a = {number} WHERE p = 1 AND c = 1;", number + 1)
        )
        for turn in range(2)
    ]
    return spent[-1]


def _keep(lake: Lake, text: str, number: int) -> None:
    start_us = us_from_ms(Timeline.read(lake).known[-1].time_ms)
    clock = Clock(Microseconds(start_us + MINUTE_US * (number + 1)))
    result = commit_script(text, lake, clock, Settings(), on_outcome=lambda outcome: outcome)
    if result.summary.keys() != {"done"}:
        raise AssertionError(f"not all of it was done: {result.summary}")
