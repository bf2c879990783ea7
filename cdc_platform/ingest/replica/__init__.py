"""A live cluster's table itself in the lake: copied once, and kept up by its log."""
