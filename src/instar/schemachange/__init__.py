"""Schema change: from what a statement wants to durable, resumable stages that writers never wait for.

planner.py turns wanted actions (wanted.py) into stages (stages.py) by tables of states (states.py) and ordering rules
(rules.py), publishing.py applies one to the descriptors; jobs.py keeps what is under way (job_records.py), executor.py
runs it, reorganize.py moves the data of small tables; compatibility.py judges transactions that cross a change. Knows
catalog, tables and the store; it knows nothing of SQL text or sessions.
"""
