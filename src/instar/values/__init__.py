"""Values at the edges: text and Python objects to internal values (types.py) and back; casts between types.

All in PostgreSQL's forms and with its errors. It knows types, errors and the standard library; nothing of rows, keys,
SQL or storage. `from_text`, `to_text`, `from_python`, `to_python`, `type_of_python`; `compile_cast`, `cast_context`;
`comparison_key` for whatever sorts, groups or hashes values; `jsonb` and `numbers` hold those types' own rules.
"""

from instar.values.casts import cast, cast_context, category, compile_cast, is_preferred
from instar.values.comparison import comparison_key
from instar.values.python import converter, from_python, to_python, type_of_python
from instar.values.text import from_text, reader, to_text, writer

__all__ = [
    "cast",
    "cast_context",
    "category",
    "comparison_key",
    "compile_cast",
    "converter",
    "from_python",
    "from_text",
    "is_preferred",
    "reader",
    "to_python",
    "to_text",
    "type_of_python",
    "writer",
]
