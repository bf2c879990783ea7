"""Pictures of rings, streams and timelines: PNGs with the expected colours, of bounded size, and deterministic."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.image import imread

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.plots import GenerationBar, plot_ring, plot_streams, plot_timeline
from cdc_platform.plots.plots import MAX_IMAGE_BYTES

BLUE, ORANGE, GREEN = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73)
QUARTER = 1 << 62


def pixels(png: bytes, colour: tuple[int, int, int]) -> int:
    """Return how many pixels of a picture have exactly this colour."""
    image = (imread(io.BytesIO(png), format="png")[:, :, :3] * 255).round().astype(int)
    return int((image == colour).all(axis=2).sum())


def large_ring() -> bytes:
    """Draw a ring of 100 nodes with 256 vnodes each."""
    source = np.random.default_rng(1)
    ends = np.sort(source.integers(-(2**63) + 1, 2**63 - 1, 25_600))
    return plot_ring(ends, source.integers(0, 100, 25_600), [f"10.0.0.{i}" for i in range(100)], joining=99)


def large_streams() -> bytes:
    """Draw the streams of 100 nodes with 64 shards each."""
    counts = np.random.default_rng(1).integers(200, 257, (100, 64))
    return plot_streams(counts, [f"node {i}" for i in range(100)])


def long_timeline() -> bytes:
    """Draw sixty generations, the newest not yet published."""
    bars = [
        GenerationBar(f"generation {i}", Milliseconds(1_700_000_000_000 + i * 86_400_000), i < 59) for i in range(60)
    ]
    return plot_timeline(bars, Milliseconds(bars[-1].time_ms - 1))


@pytest.mark.parametrize("draw", [large_ring, large_streams, long_timeline])
def test_large_pictures_stay_small(draw: Callable[[], bytes]) -> None:
    """A picture of a large cluster fits into the metadata of an event, and drawing is deterministic."""
    drawn = draw()
    assert drawn.startswith(b"\x89PNG\r\n")
    assert len(drawn) < MAX_IMAGE_BYTES
    assert draw() == drawn


def test_a_ring_shows_the_shares_of_its_owners() -> None:
    """A node's area is proportional to its share of the ring, including the range that wraps around."""
    ends = np.array([-QUARTER, QUARTER, 2 * QUARTER - 1])
    drawn = plot_ring(ends, np.array([0, 1, 0]), ["a", "b"])
    assert pixels(drawn, BLUE) / pixels(drawn, ORANGE) == pytest.approx(1, rel=0.1)
    drawn = plot_ring(ends, np.array([0, 0, 1]), ["a", "b"])
    assert pixels(drawn, BLUE) / pixels(drawn, ORANGE) == pytest.approx(3, rel=0.1)


def test_a_joining_node_is_highlighted() -> None:
    """The ranges of the joining node are drawn a second time outside."""
    ends, owners = np.array([-QUARTER, 0, QUARTER]), np.array([0, 1, 0])
    without, joining = (plot_ring(ends, owners, ["a", "b"], joining=node) for node in (None, 1))
    assert pixels(joining, ORANGE) > pixels(without, ORANGE)


@pytest.mark.parametrize(("now_ms", "operates"), [(50, False), (150_000, True)])
def test_a_timeline_shows_what_operates(now_ms: Milliseconds, operates: bool) -> None:
    """The operating generation is green; before the first one starts none is."""
    drawn = plot_timeline(
        [GenerationBar("a", Milliseconds(100_000), True), GenerationBar("b", Milliseconds(200_000), True)], now_ms
    )
    assert (pixels(drawn, GREEN) > 0) is operates


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot_ring(np.array([], dtype=np.int64), np.array([], dtype=np.int64), []),
        lambda: plot_ring(np.array([1, 2]), np.array([0]), ["a"]),
        lambda: plot_streams(np.zeros((2, 4)), ["a"]),
        lambda: plot_streams(np.zeros((0, 0)), []),
        lambda: plot_timeline([], Milliseconds(0)),
    ],
)
def test_nothing_to_draw_is_refused(draw: Callable[[], bytes]) -> None:
    """Empty input, or columns of different lengths, are refused."""
    with pytest.raises(InputError):
        draw()
