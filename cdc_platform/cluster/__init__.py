"""Live clusters: how each is reached, what can be read of it, and how that goes into a home of its own.

Everything is asked by SELECT, a page and a request at a time, so that a production cluster does not notice. A secret is
resolved where it is used and is never written anywhere.
"""
