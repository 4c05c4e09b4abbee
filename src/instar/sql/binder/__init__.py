"""Names and types: from syntax trees to the typed tree at one schema version, by PostgreSQL's rules.

It knows the grammar, the functions and descriptors; the catalog only as something to look names up in. Nothing here
reads a row. `bind` is for statements; the rest is for the expressions and queries inside descriptors.
"""

from instar.sql.binder.context import CatalogReader
from instar.sql.binder.frozen import (
    FrozenConversion,
    FrozenQuery,
    bind_check,
    bind_conversion,
    bind_default,
    bind_defaults,
    canonical_view,
    freeze_check,
    freeze_conversion,
    freeze_default,
    freeze_default_as,
    freeze_query,
    thaw_check,
    thaw_default,
    thaw_materialized,
    thaw_view,
)
from instar.sql.binder.generated import freeze_generated, thaw_generated
from instar.sql.binder.statement import bind

__all__ = [
    "CatalogReader",
    "FrozenConversion",
    "FrozenQuery",
    "bind",
    "bind_check",
    "bind_conversion",
    "bind_default",
    "bind_defaults",
    "canonical_view",
    "freeze_check",
    "freeze_conversion",
    "freeze_default",
    "freeze_default_as",
    "freeze_generated",
    "freeze_query",
    "thaw_check",
    "thaw_default",
    "thaw_generated",
    "thaw_materialized",
    "thaw_view",
]
