"""The demonstration: TPC-H data under a fixed load of clients, while the schema changes.

workload.py is what the clients do, copies.py the tables among theirs that are joined and split; client.py how they do
it at fixed times, board.py where they leave their latencies; changes.py is what happens to the schema; run.py puts it
together; display.py, report.py and timeline.py show it. It uses the public interface of the package (the DB-API), and
the jobs' records for the progress of the running change.
"""
