"""Repair: whether the latest generation is still fit for the ring, and a new one where it is not."""
