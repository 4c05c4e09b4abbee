"""Both engines for every test that asks for `engine`; sessions that may wait for one another; ways, counted."""

from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here
from support.waiting import sessions, threads  # noqa: F401 - likewise
from support.ways import ways  # noqa: F401 - likewise
