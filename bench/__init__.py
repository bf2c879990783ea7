"""The benchmarks: how fast the platform's own work is, each against a floor that the same run measures."""
