"""The applications under which commits of an ingested log's table record the progress of readers.

Delta logs store these strings, so they never change.
"""

AGAIN = "ingest:again"
"""How far (µs) the second pass has read."""
LATE = "ingest:late"
"""How many late rows second passes have found so far."""
REQUESTS = "ingest:requests"
"""How many requests for pages the committed windows of both passes took; those of Spark's tasks count once each."""
RETRIES = "ingest:retries"
"""How many of them were repeated after a failure, without those of Spark's tasks."""
PARTS = "ingest:parts"
"""How many commits of partial windows the table has."""
PARTS_UNTIL = "ingest:parts-until"
"""Up to when (µs) the rows of those parts may have been written."""
