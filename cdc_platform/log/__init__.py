"""The CDC log: CQL statements become mutations, mutations become log rows, and the log can be read and replayed."""
