"""Tables: rows and index entries of one descriptor, over the bytes of the store.

layout.py and resolver.py turn stored bytes into values and back, patching.py bytes into bytes; view.py, rowset.py and
index.py read a table at a snapshot overlaid with a buffer; writes.py derives physical writes from logical changes.
This package knows descriptors, encodings and the store protocol; it knows nothing of SQL, sessions or jobs.
"""
