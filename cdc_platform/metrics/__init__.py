"""Metrics of a home in the formats of OpenMetrics and Prometheus, read when they are asked for."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "collector": (
            "HomeMetrics",
            "Scrape",
            "format_metrics",
        ),
    },
)
