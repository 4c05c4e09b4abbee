"""Join and split of live tables: the rules by which the targets follow the log of their sources.

records.py and targets.py say what the rules read and write; full_outer_join.py, many_to_many.py and split.py are the
rules, a function each; commits.py applies a commit by them, checker.py clears doubtful records of a split. All of it is
logic without input or output: it knows nothing of the store, of tables, jobs or SQL, and it never reads a source.
"""
