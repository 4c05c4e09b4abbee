"""Benchmarks: each figure beside a peer in the same run, at equal durability.

harness.py measures in alternating rounds and holds the results; tables.py makes the same table in Instar and in SQLite;
clients.py has processes that read and write beside what is measured, postgres.py a server of PostgreSQL with the same
table and clients; noise.py says whether the machine was disturbed. Each other module is one group of figures with
`run(options)`, and gate.py can be run alone.
"""
