"""Live clusters in Dagster: observations on change, and ingestion of their CDC logs."""
