"""The CDC logs in Dagster: what is in each, and whether it is where the rules put it; and their copies hour by hour."""
