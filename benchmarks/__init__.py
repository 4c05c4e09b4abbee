"""Benchmarks: each figure beside a peer in the same run, at equal durability.

harness.py measures in alternating rounds and holds the results; tables.py makes the same table in Instar and in SQLite;
each other module is one group of figures with `run(options)`, and gate.py can be run alone.
"""
