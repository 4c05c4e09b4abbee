"""The command `instar`: a client of the DB-API like any other, with a terminal on its other side.

main.py declares the commands; statements.py splits text into statements; runner.py runs them and prints; shell.py is
the interactive prompt, commands.py its backslash commands, describe.py the answers to \\d; output.py writes results and
errors; declarative.py dumps, plans and applies schemas; transfer.py imports and exports; inspection.py checks and looks
inside. Knows dbapi and, for \\d, descriptors.
"""
