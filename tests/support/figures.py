"""Figures of tests besides pass and fail: parts of a whole, summed over all tests and printed after the run."""

from __future__ import annotations

from collections import Counter

import pytest

_FIGURE = "figure"


def tell(request: pytest.FixtureRequest, name: str, part: int, whole: int) -> None:
    """Add a part and its whole to a figure that the end of the run prints; tests with the same name are summed."""
    request.node.user_properties.append((_FIGURE, (name, part, whole)))


class Figures:
    """The plugin."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line per figure."""
        parts, wholes = Counter[str](), Counter[str]()
        for outcome in ("passed", "failed"):
            for report in terminalreporter.getreports(outcome):
                for key, value in getattr(report, "user_properties", ()):
                    if key == _FIGURE and getattr(report, "when", "call") == "call":
                        name, part, whole = value
                        parts[name] += part
                        wholes[name] += whole
        if wholes:
            terminalreporter.section("figures")
        for name, whole in sorted(wholes.items()):
            share = parts[name] / whole if whole else 0.0
            terminalreporter.write_line(f"{parts[name]:7} of {whole}, {share:.1%}: {name}")
