"""Expiry: when no log can hold a row of a generation any more, what goes then, and what growth would keep."""
