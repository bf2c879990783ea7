"""Live clusters in Dagster: observed when something of them changes, and their CDC logs brought in."""
