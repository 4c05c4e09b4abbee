"""The catalog: what objects there are, at one snapshot, and how a change of them is committed.

Descriptors (descriptors.py) are immutable and versioned as wholes in two system tables whose own descriptors are
hard-coded (system.py); catalog.py looks them up as of a snapshot and collects the changes of one transaction or
stage; layouts.py finds row layouts by id, outside any version. System views that users see are in
system_tables.py and constraint_tables.py.
The catalog knows the store and the encodings; it knows no rows but its own, and nothing of SQL.
"""
