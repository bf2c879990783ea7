"""A replica of a live cluster's table in the lake: copied once, then updated from its log."""
