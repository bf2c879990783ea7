"""The catalogue is held against the tables: what was written without a run is told as well, and what is gone."""
