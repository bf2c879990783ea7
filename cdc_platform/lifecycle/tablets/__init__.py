"""Tablets: the changes of a table's tablets with the streams that follow them, and what time removes of both."""
