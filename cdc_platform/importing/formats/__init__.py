"""Parsers of the files that import and other commands read: cqlsh exports, schemas, nodetool output and JSON."""
