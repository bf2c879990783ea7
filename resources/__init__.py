"""What assets are given to work with: Spark, the home with its lake and settings, the clock. Nothing starts on load.

Import the modules, not the package: whoever needs the lake alone must not load PySpark for it.
"""
