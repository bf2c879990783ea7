"""The benchmarks: how fast the platform's own work is, each relative to a floor that the same run measures."""
