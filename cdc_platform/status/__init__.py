"""How a home stands, on one screen: what there is, what is wrong with it, and the next thing to do.

It reads small tables and Delta's log, never a stream, and writes nothing; no JVM. What it makes of them is in plain
values, fit for JSON as for a screen.
"""

from cdc_platform.status.matters import CODES, Matter
from cdc_platform.status.overview import Overview, overview

__all__ = ["CODES", "Matter", "Overview", "overview"]
