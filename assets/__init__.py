"""Dagster definitions: one module or package per topic with its assets, checks, jobs, sensors and schedules.

Each exports them as `DEFINED`; modules shared by all topics are at this level.
"""
