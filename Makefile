# `make demo` and `make test` are the two commands; both set up what they need (scripts/bootstrap).

# One more than the processors of the smallest machine in use: tests wait for a quarter of their time.
WORKERS ?= 3
DEMO ?=
BENCH ?=
PYTEST ?=

.PHONY: help packages setup demo test lint format bench docs lock clean

help:
	@echo "make demo    schema changes under live traffic, with pictures (DEMO='--scale 1' and others)"
	@echo "make test    all tests (PYTEST='-k name' to choose)"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make format  rewrite the sources as ruff formats them"
	@echo "make bench   ratios against peers (BENCH='name' to choose)"
	@echo "make docs    check links and examples of the documentation"
	@echo "make lock    choose new versions for requirements.lock"
	@echo "make clean   remove what the other targets made, .venv too"

packages:
	@scripts/bootstrap packages

setup: packages
	@scripts/bootstrap

demo: setup
	@.venv/bin/python -m demo $(DEMO)

test: setup
	@# A crashed process is not replaced: pytest-xdist would wait for ever for what was left of its group.
	@# Whatever the environment says of compiled files, they are kept: hundreds of processes import the package.
	@PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(WORKERS) --max-worker-restart=0 $(PYTEST)

lint: packages
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@# The tests have settings, and so a cache, of their own: both at once.
	@.venv/bin/mypy & .venv/bin/mypy --config-file tests/mypy.ini && wait $$!
	@# Its cache keeps imports of modules that were not there yet.
	@.venv/bin/lint-imports --no-cache

format: packages
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

bench: setup
	@.venv/bin/python -m benchmarks $(BENCH)

docs: packages
	@.venv/bin/python scripts/check_docs.py

lock: packages
	@.venv/bin/python scripts/lock.py

clean:
	rm -rf .venv build dist demo-out bench-out spark-warehouse metastore_db derby.log src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks demo scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
