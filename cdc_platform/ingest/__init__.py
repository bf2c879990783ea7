"""The CDC log of a live cluster, brought into the lake exactly once, window after window."""
