"""Which generations there are and in which state (`Timeline`), and which stream a write gets (`StreamSource`).

Everybody who asks either question asks here: commands, steps, readers, audits. It reads the records and writes nothing.
`StreamSources` is the one place that knows whether a table's streams are those of the generations or of its tablets.
"""

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
