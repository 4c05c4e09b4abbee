"""Both engines for every test that asks for `engine`."""

from support.engines import engine  # noqa: F401 - pytest finds the fixture by its name here
