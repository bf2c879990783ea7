"""The hash chain of a table's commits: a stored chain reveals later changes, truncation and removal of commits."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_platform.clock import Milliseconds, datetime_from_ms, parse_time_ms
from cdc_platform.delta import ChainStatus, HashChain, Lake, hash_chain, transaction_log
from cdc_platform.delta.hash_chain import GENESIS_LINK
from cdc_platform.tables import GENERATION_TIMESTAMPS as TABLE

TIME = parse_time_ms("2026-01-31T12:00:00.384Z")
NEWEST = 7
"""The table's version after its creation and seven writes."""


def stamp(number: int) -> pa.Table:
    """Return one row."""
    rows = [{"key": "timestamps", "time": datetime_from_ms(Milliseconds(TIME + number)), "expired": None}]
    return pa.Table.from_pylist(rows, schema=TABLE.schema)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of eight commits."""
    lake = Lake(tmp_path / "lake")
    for number in range(7):
        lake.merge(TABLE, stamp(number), update=False)
    return lake


def entry(lake: Lake, version: int) -> Path:
    """Return the log entry of a commit."""
    return Path(str(transaction_log.get_entry_path(lake.path(TABLE), version)))


def current_chain(lake: Lake) -> HashChain:
    """Return the current chain."""
    chain = hash_chain.read_hash_chain(lake, TABLE)
    assert chain is not None
    return chain


def test_a_link_follows_its_documented_definition(lake: Lake) -> None:
    """The few documented lines with SHA-256 alone reproduce every link."""
    link = GENESIS_LINK
    for version in range(NEWEST + 1):
        file = sha256(entry(lake, version).read_bytes()).hexdigest()
        link = sha256(f"{link} {version} {file}\n".encode()).hexdigest()
        assert current_chain(lake).links[version] == link
    assert (current_chain(lake).first, current_chain(lake).last) == (0, NEWEST)


def test_a_longer_log_has_the_same_start(lake: Lake) -> None:
    """An unchanged log HOLDS; commits after the last link make the answer NEWER."""
    before = current_chain(lake)
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.HOLDS
    lake.merge(TABLE, stamp(7), update=False)
    result = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (result.answer, "1 newer ones follow" in result.message) == (ChainStatus.NEWER, True)


def test_the_first_changed_commit_is_named(lake: Lake) -> None:
    """A rewritten CommitInfo changes its link and every later one; the message names the first."""
    before = current_chain(lake)
    (sealed,) = (commit for commit in lake.commits(TABLE) if commit.version == 2)
    assert sealed.info is not None
    text = entry(lake, 2).read_text(encoding="utf-8")
    entry(lake, 2).write_text(text.replace(sealed.info.id, "0" * 36), encoding="utf-8")
    assert entry(lake, 2).read_text(encoding="utf-8") != text
    result = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (result.answer, result.message) == (ChainStatus.DIFFERS, "version 2 is not the commit that it was")


def test_a_change_between_stored_links_is_found(lake: Lake) -> None:
    """If only some links are stored, the next stored link reveals the change."""
    before = current_chain(lake)
    sparse = HashChain(before.first, before.last, {version: before.links[version] for version in (1, NEWEST)})
    entry(lake, 3).write_text(entry(lake, 3).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    result = hash_chain.compare_hash_chain(lake, TABLE, sparse)
    assert (result.answer, result.message) == (
        ChainStatus.DIFFERS,
        f"a version from 2 to {NEWEST} is not the commit that it was",
    )


def test_a_log_without_its_end_differs(lake: Lake) -> None:
    """A log without its newest entries differs, and so does a missing table."""
    before = current_chain(lake)
    assert hash_chain.compare_hash_chain(Lake(lake.path(TABLE)), TABLE, before).answer is ChainStatus.DIFFERS
    entry(lake, NEWEST).unlink()
    result = hash_chain.compare_hash_chain(Lake(Path(lake.path(TABLE)).parents[1]), TABLE, before)
    assert (result.answer, result.message) == (
        ChainStatus.DIFFERS,
        f"the log ends with version {NEWEST - 1}, it had version {NEWEST}",
    )


def test_a_hole_in_the_log_differs(lake: Lake) -> None:
    """A missing entry between others was removed on purpose: a cleanup removes only the oldest."""
    before = current_chain(lake)
    entry(lake, 3).unlink()
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.DIFFERS


def test_cleaned_up_entries_are_unknown(lake: Lake) -> None:
    """The remaining entries are compared with the links, but the answer for the removed ones is UNKNOWN."""
    before = current_chain(lake)
    for version in (0, 1):
        entry(lake, version).unlink()
    result = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (result.answer, "0 to 1 are no longer in the log" in result.message) == (ChainStatus.UNKNOWN, True)
    shortened = current_chain(lake)
    assert shortened.first == 2
    assert hash_chain.compare_hash_chain(lake, TABLE, shortened).answer is ChainStatus.HOLDS
    entry(lake, 4).write_text("{}\n", encoding="utf-8")
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.DIFFERS


def test_a_long_log_has_a_bounded_number_of_links(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain of a long log stores a bounded number of links, among them the last."""
    monkeypatch.setattr(hash_chain, "_MAX_LINKS", 2)
    assert list(current_chain(lake).links) == [3, 7]
