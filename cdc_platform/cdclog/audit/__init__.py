"""Audits of CDC logs, consumers' sinks, ingested logs and table states."""
