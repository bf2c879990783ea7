"""Dagster resources: Spark, the home with its lake and settings, the clock. Loading them starts nothing.

Import the modules, not the package: assets that need only the lake must not load PySpark.
"""
