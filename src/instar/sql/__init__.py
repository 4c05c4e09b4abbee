"""SQL: from text to rows.

grammar/ and parser.py read PostgreSQL's dialect; binder/ makes a typed tree (tree.py) of it at one schema version, with
the functions of functions/; planner.py chooses access paths, executor*.py runs plans over the tables, analytic*.py what
reads whole tables (DuckDB); ddl.py, with alter_table.py, says of schema changes what they want of their planner. Knows
tables and catalog, no session, no I/O.
"""
