"""What one node knows of generations: what it remembers, retries, promises, and restarts with.

A node knows no lake, no clock and no thread. Whoever makes one hands in what it reads, what it keeps, the time and
what it waits with (`given`). So a cluster of them runs in one thread, in simulated time, and always in the same way.
"""
