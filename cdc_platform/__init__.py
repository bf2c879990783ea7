"""ScyllaDB CDC generations on Spark and Delta Lake: the library behind the command line and the Dagster assets."""

__version__ = "0.1.0"
