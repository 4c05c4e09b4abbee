"""Instar: a SQL database whose schema changes while it runs."""

__version__ = "0.1.0"
