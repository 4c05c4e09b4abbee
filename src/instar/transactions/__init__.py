"""Transactions: what a session has written but not committed, the snapshot it reads at, and the commit.

Here live the buffer of logical row changes with its savepoints (buffer.py), the transaction and its isolation level
(transaction.py), and the loop of derive, validate and apply that turns the buffer into one atomic store commit
(commit.py). This package knows the store, but neither descriptors nor layouts: a table is a number here, and what
physical writes a logical change means is asked of a Deriver that the tables package supplies.
"""
