"""Joins: a generation is described, audited, inserted, given its timestamp and published, in either format."""
