"""What comes from outside: joining nodes, ring snapshots, cqlsh exports. Parsing is pure; `importing` alone writes."""
