"""Audits of CDC logs: rows in streams that their generation or stream set has not, and what a log holds in numbers."""
