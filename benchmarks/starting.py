"""How the processes of a benchmark are started."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext, SpawnContext

# By an interpreter that knows nothing of this one. Tests, which measure nothing, save the second that its start takes.
CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
