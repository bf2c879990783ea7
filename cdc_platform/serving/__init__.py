"""What `cdc-platform up` starts: Dagster's code server, its daemon and its UI, each by an entry of the platform's own.

Every entry binds its process's life to that `up` (`lease`). Which processes there are and when they end is `up`'s.
"""
