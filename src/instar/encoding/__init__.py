"""Bytes: how keys and rows lie in the store, and how a human reads them.

keys.py, key_batches.py: order-preserving keys, one at a time and by the column. rows.py, row_batches.py: row bodies,
one at a time and as Arrow arrays (arrow_compute.py); patching.py, comparing.py: some columns of a row. format.py: text.
Knows types and errors only: no descriptors, no transactions, not even which prefixes the store gives its keys.
"""
