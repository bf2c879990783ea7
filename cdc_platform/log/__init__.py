"""The CDC log: mutations of CQL statements become log rows, and the log can be read and replayed."""
