"""The database: the one place where the parts are put together.

database.py opens a store and holds what a process keeps of it; session.py runs statements in transactions; commit.py
derives what a transaction commits; settings.py are the session's settings. It may know every package below it; the
interfaces (the DB-API, the command line, later a server) know it and nothing else.
"""

from instar.database.database import Database
from instar.database.result import Result
from instar.database.session import Session

__all__ = ["Database", "Result", "Session"]
