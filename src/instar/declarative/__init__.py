"""Schemas as files: dump, plan, apply (F1 §4.5 keeps its schema repository as one file, and changes as batches of it).

model.py says what a schema is, reading.py makes one of a catalog, file.py one of a text; renames.py and diff.py find
what differs, as the data of changes.py; order.py has the rules of safe order, rendering.py writes SQL. planning.py
rehearses the statements on the live database, report.py shows the plan, applying.py executes it.
"""

from instar.declarative.file import SchemaFile, load
from instar.declarative.planning import Plan, Step, dump, make_plan

__all__ = ["Plan", "SchemaFile", "Step", "dump", "load", "make_plan"]
