"""Pictures of expiry: PNGs with the expected colours, of bounded size, and deterministic."""

from __future__ import annotations

import io

import pytest
from matplotlib.image import imread

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.plots import GenerationStay, plot_growth, plot_purge_plan
from cdc_platform.plots.plots import MAX_IMAGE_BYTES

DAY = 86_400_000
START = Milliseconds(1_767_225_600_000)
GREEN, ORANGE, GREY, RED = (0x00, 0x9E, 0x73), (0xE6, 0x9F, 0x00), (0x99, 0x99, 0x99), (0xD5, 0x5E, 0x00)


def pixels(png: bytes, colour: tuple[int, int, int]) -> int:
    """Return how many pixels of a picture have exactly this colour."""
    image = (imread(io.BytesIO(png), format="png")[:, :, :3] * 255).round().astype(int)
    return int((image == colour).all(axis=2).sum())


def stays(count: int, *, held: bool = False) -> list[GenerationStay]:
    """Return one generation a day whose rows live for two days; the newest operates."""
    ended = [
        GenerationStay(
            f"generation {n}",
            Milliseconds(START + n * DAY),
            Milliseconds(START + (n + 1) * DAY),
            Milliseconds(START + (n + 3) * DAY),
            Milliseconds(START + (n + 4) * DAY),
            held,
        )
        for n in range(count - 1)
    ]
    return [*ended, GenerationStay("newest", Milliseconds(START + (count - 1) * DAY), None, None, None, True)]


def test_the_plan_shows_retained_generations_and_the_grace_time() -> None:
    """Orange marks retained generations, grey the grace time, green the operating and the former ones."""
    free, retained = (
        plot_purge_plan(stays(4), Milliseconds(START + 3 * DAY)),
        plot_purge_plan(stays(4, held=True), Milliseconds(START + 3 * DAY)),
    )
    assert pixels(retained, ORANGE) > 5 * max(pixels(free, ORANGE), 1)
    assert pixels(free, GREY) > 100
    assert pixels(free, GREEN) > 100


def test_large_pictures_stay_small() -> None:
    """Ten thousand generations or nodes fit into the metadata of an event, and drawing is deterministic."""
    many = stays(10_000)
    for draw in (
        lambda: plot_purge_plan(many, many[-1].time_ms),
        lambda: plot_growth(range(10_001), range(0, 10_001 << 30, 1 << 30), [1 << 20] * 10_001),
    ):
        assert draw().startswith(b"\x89PNG\r\n")
        assert len(draw()) < MAX_IMAGE_BYTES
        assert draw() == draw()


def test_growth_with_expiry_is_another_line() -> None:
    """Growth with and without expiry are two lines in their own colours."""
    drawn = plot_growth([0, 1, 2], [10, 20, 40], [10, 11, 12])
    assert pixels(drawn, RED) > 50
    assert pixels(drawn, GREEN) > 50


def test_nothing_to_draw_is_refused() -> None:
    """An empty plan, an empty forecast and lines of different lengths are refused."""
    with pytest.raises(InputError, match="one generation at least"):
        plot_purge_plan([], START)
    for numbers in (([], [], []), ([1, 2], [1], [1, 2])):
        with pytest.raises(InputError, match="as many numbers"):
            plot_growth(*numbers)
