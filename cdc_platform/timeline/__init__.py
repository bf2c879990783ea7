"""Which generations there are and in which state (`Timeline`), and which stream a write gets (`StreamSource`).

Everybody who asks either question asks here: commands, steps, readers, audits. It reads the records and writes nothing.
`StreamSources` is the one place that knows whether a table's streams are those of the generations or of its tablets.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc_platform.timeline.generation import Generation, State
    from cdc_platform.timeline.periods import KnownStreams, Period
    from cdc_platform.timeline.stream_source import Answer, StreamsOf, StreamSource
    from cdc_platform.timeline.stream_sources import StreamSources
    from cdc_platform.timeline.timeline import Timeline

__all__ = [
    "Answer",
    "Generation",
    "KnownStreams",
    "Period",
    "State",
    "StreamSource",
    "StreamSources",
    "StreamsOf",
    "Timeline",
]

_HOLD = {
    "generation": ("Generation", "State"),
    "periods": ("KnownStreams", "Period"),
    "stream_source": ("Answer", "StreamSource", "StreamsOf"),
    "stream_sources": ("StreamSources",),
    "timeline": ("Timeline",),
}
_MODULES = {name: module for module, names in _HOLD.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name out of its module, imported when it is asked for: who lists generations has no use for tablets."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
