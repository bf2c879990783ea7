"""ScyllaDB's CDC generations on Spark and Delta Lake: the library behind the assets and the command line."""

__version__ = "0.1.0"
