"""Dagster's side of a generation's life: a room a topic, each with its assets, checks, jobs, sensors and schedules.

What a room defines it says itself, as `DEFINED`, in its module or in `defined`; what all rooms use is beside them.
"""
