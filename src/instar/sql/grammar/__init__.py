"""PostgreSQL's grammar, as far as Instar speaks it: from text to sqlglot expressions and `statements`.

The lexer and the grammar are Instar's own, because sqlglot's parser, made to read any dialect, passes over what it does
not understand (`SELECT a FROM t, WHERE b`, `x BETWEEN 1 2`): here what is not understood is a syntax error with its
position, or 0A000 by name. It knows types, errors and sqlglot's syntax tree; nothing of tables or functions.
"""
