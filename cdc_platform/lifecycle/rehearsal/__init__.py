"""Rehearsals: what a list of topology changes would do, played in memory."""
