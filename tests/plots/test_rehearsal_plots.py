"""The picture of a rehearsal: of bounded size and deterministic."""

from __future__ import annotations

import io

import pytest
from matplotlib.image import imread

from cdc_platform.errors import InputError
from cdc_platform.plots import RehearsalBar, plot_rehearsal
from cdc_platform.plots.plots import MAX_IMAGE_BYTES

GREEN, RED = (0x00, 0x9E, 0x73), (0xD5, 0x5E, 0x00)


def steps(count: int, *, excess: bool = False) -> list[RehearsalBar]:
    """Return this many joins."""
    sizes_by_step = [{"a.v2": 10**7 * number, "a.v1": 0} for number in range(1, count + 1)]
    return [
        RehearsalBar(sizes, 100 * index, 1 - index / (10 * count), excess) for index, sizes in enumerate(sizes_by_step)
    ]


def pixels(png: bytes, colour: tuple[int, int, int]) -> int:
    """Return how many pixels have exactly this colour."""
    image = (imread(io.BytesIO(png), format="png")[:, :, :3] * 255).round().astype(int)
    return int((image == colour).all(axis=2).sum())


@pytest.mark.parametrize("count", [1, 8, 2000])
def test_size_is_bounded_and_drawing_is_deterministic(count: int) -> None:
    """Pictures of one step and of thousands stay small, and drawing is deterministic."""
    drawn = plot_rehearsal(steps(count), 10**8)
    assert drawn.startswith(b"\x89PNG\r\n")
    assert len(drawn) < MAX_IMAGE_BYTES
    assert plot_rehearsal(steps(count), 10**8) == drawn
    assert pixels(drawn, GREEN) > 0 or count == 1


def test_excess_ranges_are_marked() -> None:
    """A dot marks steps whose newest generation has unused ranges."""
    assert pixels(plot_rehearsal(steps(8)), RED) == 0
    assert pixels(plot_rehearsal(steps(8, excess=True)), RED) > 50


def test_an_empty_rehearsal_is_refused() -> None:
    """An empty rehearsal has no picture."""
    with pytest.raises(InputError, match="one step at least"):
        plot_rehearsal([])
