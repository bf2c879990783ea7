"""The upgrade from the first format: the rewrite of its tables, and publishing what they describe."""
