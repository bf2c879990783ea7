"""The state of a base table as Arrow rows, one per cell, marker or tombstone: build, merge, select, store."""
