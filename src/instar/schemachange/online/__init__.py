"""Online join and split as jobs: what transformations/ has as rules, done to tables.

The targets are filled from a snapshot of their sources (image.py), and follow the sources' log from there on by the
rules (following.py), the last of it in the commit of the switch (tail.py). Nobody else sees them or writes to them
until then, so rows are put blindly, without locks or log.
"""
