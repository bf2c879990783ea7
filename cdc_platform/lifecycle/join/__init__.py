"""Joins: describe, audit and insert a generation, assign its timestamp and publish it, in both formats."""
