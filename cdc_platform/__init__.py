"""ScyllaDB's CDC generations on Spark and Delta Lake: the library behind the assets and the command line.

Docstrings of modules say what a module knows. What one does not name it leaves alone: either it imports the module that
knows that, or it is handed what it needs by who calls.
"""

__version__ = "0.1.0"
