"""Folders in a place with more files than one list returns, listed in any order."""

from __future__ import annotations

import random

import pytest

from cdc_platform.storage import ListingCache, ObjectStorePath, object_store


def assert_listed_as_it_is(lake: ObjectStorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a listing agrees with a list of each folder alone while files are added."""
    monkeypatch.setattr(object_store, "_PAGE_SIZE", 7)
    draw = random.Random(5)
    folders = [lake / f"{draw.choice('ab')}/{name}/_log" for name in "cdefgh"]
    for folder in folders:
        for name in draw.sample(range(100), draw.choice([0, 1, 3, 9])):
            (folder / f"{name:02d}").create(b"x")
        for name in range(draw.choice([0, 2, 12])):
            (folder.folder / f"p={name}/x").create(b"x")
    listing, names = ListingCache(), 0
    for _ in range(60):
        folder, after = draw.choice(folders), draw.choice(["", "30", "70"])
        files = listing.files(folder, lake, after)
        assert files == folder.files(after), folder
        names += len(files)
        if draw.random() < 0.3:
            listing.invalidate(*draw.choice([[], [folder]]))
            (folder / f"{draw.randrange(100):02d}").create(b"y")
    assert names > 60
    assert bool(listing._alone) == lake.lists_from_anywhere
