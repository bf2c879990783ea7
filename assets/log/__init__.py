"""CDC logs in Dagster: contents, checks, and hourly copies."""
