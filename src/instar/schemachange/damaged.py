"""Jobs whose records cannot be read: one of them keeps nobody from seeing the others."""

from __future__ import annotations

from instar import errors
from instar.schemachange.jobs import Job, Jobs
from instar.store.engine import Reader, prefix_end
from instar.store.records import Latest, latest_key

DAMAGED = "damaged"  # the state that is shown of such a job


def readable_jobs(reader: Reader) -> tuple[list[Job], list[int]]:
    """Every job that the reader sees, in the order of their ids; the ids of those whose records are damaged."""
    found: list[Job] = []
    damaged: list[int] = []
    prefix = latest_key(Latest.JOB)
    for key, stored in reader.scan(prefix, prefix_end(prefix)):
        number = int.from_bytes(key[len(prefix) :], "big")
        try:
            found.append(Jobs.decode(stored, number))
        except errors.Error:
            damaged.append(number)
    return found, damaged
