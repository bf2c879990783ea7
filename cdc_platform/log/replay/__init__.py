"""Replaying a CDC log: its rows become the mutations that they came from, and those the base table, on Spark too."""
