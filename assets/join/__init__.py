"""Joins in Dagster: the inbox, and an asset with checks per step, one partition per generation."""
