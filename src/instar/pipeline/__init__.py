"""The pipeline: bulk work on whole tables, most of it on Spark.

session.py keeps the process's Spark; datasource.py is a table at a timestamp as a DataFrame; reorganizer.py builds
indexes as Spark jobs; consistency.py is CHECK DATABASE; transfer.py exports what is large. Knows tables,
schema changes and the store; it knows nothing of SQL: what expressions mean is handed in as closures.
"""
