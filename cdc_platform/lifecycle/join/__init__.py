"""A join: a node's generation is described, audited, inserted, given its timestamp, and published, in either format."""
