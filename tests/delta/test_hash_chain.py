"""The chain over a table's commits: what was kept of it once tells later what was changed, cut or taken out."""

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
"""The version of the table after its making and seven writes."""


def stamp(number: int) -> pa.Table:
    """One row."""
    rows = [{"key": "timestamps", "time": datetime_from_ms(Milliseconds(TIME + number)), "expired": None}]
    return pa.Table.from_pylist(rows, schema=TABLE.schema)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of several commits."""
    made = Lake(tmp_path / "lake")
    for number in range(7):
        made.merge(TABLE, stamp(number), update=False)
    return made


def entry(lake: Lake, version: int) -> Path:
    """The file of a commit."""
    return Path(str(transaction_log.get_entry_path(lake.path(TABLE), version)))


def kept(lake: Lake) -> HashChain:
    """The chain as it is now."""
    found = hash_chain.read_hash_chain(lake, TABLE)
    assert found is not None
    return found


def test_a_link_is_made_as_it_is_written_down(lake: Lake) -> None:
    """Anyone can make the links again with SHA-256 alone, in the few lines that the documents give."""
    link = GENESIS_LINK
    for version in range(NEWEST + 1):
        file = sha256(entry(lake, version).read_bytes()).hexdigest()
        link = sha256(f"{link} {version} {file}\n".encode()).hexdigest()
        assert kept(lake).links[version] == link
    assert (kept(lake).first, kept(lake).last) == (0, NEWEST)


def test_a_log_that_goes_on_still_begins_so(lake: Lake) -> None:
    """The same log holds; with commits behind the last link it is the same history, gone on."""
    before = kept(lake)
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.HOLDS
    lake.merge(TABLE, stamp(7), update=False)
    found = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (found.answer, "1 newer ones follow" in found.message) == (ChainStatus.NEWER, True)


def test_a_changed_commit_is_named(lake: Lake) -> None:
    """Whoever rewrites an old envelope changes that link and every later one; the first is named."""
    before = kept(lake)
    (sealed,) = (each for each in lake.commits(TABLE) if each.version == 2)
    assert sealed.info is not None
    text = entry(lake, 2).read_text(encoding="utf-8")
    entry(lake, 2).write_text(text.replace(sealed.info.id, "0" * 36), encoding="utf-8")
    assert entry(lake, 2).read_text(encoding="utf-8") != text
    found = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (found.answer, found.message) == (ChainStatus.DIFFERS, "version 2 is not the commit that it was")


def test_a_change_between_kept_links_is_found(lake: Lake) -> None:
    """Where not every link was kept, the change is found at the next one that was."""
    before = kept(lake)
    sparse = HashChain(before.first, before.last, {each: before.links[each] for each in (1, NEWEST)})
    entry(lake, 3).write_text(entry(lake, 3).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    found = hash_chain.compare_hash_chain(lake, TABLE, sparse)
    assert (found.answer, found.message) == (
        ChainStatus.DIFFERS,
        f"a version from 2 to {NEWEST} is not the commit that it was",
    )


def test_a_log_without_its_end_differs(lake: Lake) -> None:
    """A log whose newest entries are gone, and a table that is gone, are not unchanged."""
    before = kept(lake)
    assert hash_chain.compare_hash_chain(Lake(lake.path(TABLE)), TABLE, before).answer is ChainStatus.DIFFERS
    entry(lake, NEWEST).unlink()
    found = hash_chain.compare_hash_chain(Lake(Path(lake.path(TABLE)).parents[1]), TABLE, before)
    assert (found.answer, found.message) == (
        ChainStatus.DIFFERS,
        f"the log ends with version {NEWEST - 1}, it had version {NEWEST}",
    )


def test_a_hole_in_the_log_differs(lake: Lake) -> None:
    """An entry that is missing between others was taken out: a clean-up takes the oldest."""
    before = kept(lake)
    entry(lake, 3).unlink()
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.DIFFERS


def test_what_was_cleaned_up_is_unknown(lake: Lake) -> None:
    """Behind entries that are gone the rest is held against the links; nobody says that all of it is fine."""
    before = kept(lake)
    for version in (0, 1):
        entry(lake, version).unlink()
    found = hash_chain.compare_hash_chain(lake, TABLE, before)
    assert (found.answer, "0 to 1 are no longer in the log" in found.message) == (ChainStatus.UNKNOWN, True)
    again = kept(lake)
    assert again.first == 2
    assert hash_chain.compare_hash_chain(lake, TABLE, again).answer is ChainStatus.HOLDS
    entry(lake, 4).write_text("{}\n", encoding="utf-8")
    assert hash_chain.compare_hash_chain(lake, TABLE, before).answer is ChainStatus.DIFFERS


def test_many_links_are_not_all_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log keeps a bounded number of links, its last among them."""
    monkeypatch.setattr(hash_chain, "_MAX_LINKS", 2)
    assert list(kept(lake).links) == [3, 7]
