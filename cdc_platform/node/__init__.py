"""What one node knows of generations: what it remembers, retries, promises, and restarts with."""
