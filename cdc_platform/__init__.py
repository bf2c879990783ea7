"""ScyllaDB CDC generations on Spark and Delta Lake: the library behind the command line and the Dagster assets."""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__version__ = "0.2.0"

__getattr__ = lazy_exports(__name__, {"home": ("Home", "open_home")})
