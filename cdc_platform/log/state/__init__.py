"""The state of a base table in one shape, a row a cell, marker or tombstone: made of a log, merged, and looked at."""
