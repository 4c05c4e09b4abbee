"""Arrow's compute functions: `pyarrow.compute`, loaded when one of them is first asked for.

It makes some hundred functions as it is imported, which is a tenth of what it takes to open a database, and most
processes ask for none. Its stubs are generic in types that are known at run time only: what is found here is Any.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
