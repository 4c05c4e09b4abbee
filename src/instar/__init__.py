"""Instar: a SQL database whose schema changes while it runs.

The module itself is the DB-API 2.0 interface: `instar.connect(path)`. It is loaded when it is first used, so that a
Spark worker or a tool that needs one package of Instar does not load all of it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instar.dbapi import *  # noqa: F403 - PEP 249 wants these names in the module

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `from instar import errors` asks here first: a submodule is none of the DB-API's names.
    if find_spec(f"instar.{name}") is None:
        from instar import dbapi

        if name in dbapi.__all__:
            return getattr(dbapi, name)
    raise AttributeError(f"module 'instar' has no attribute {name!r}")


def __dir__() -> list[str]:
    from instar import dbapi

    return sorted({*globals(), *dbapi.__all__})
