"""The background process of a store: `python -m instar.worker PATH`.

`work` has the turns: jobs that nobody works on, garbage collection, dead rowsets; `process` the process that takes
them, `__main__` its first lines. Never in a thread of the application: a process of its own leaves the application's
interpreter alone. There is one per store, started on demand, and it ends when it has had nothing to do for a while.
`check` is another process, for one CHECK on Spark. All may know everything below the session; what only a process of
its own needs is imported there alone.
"""

# How far the worker stands back where processors are short: it gets about a tenth of what another process does.
NICENESS = 10
