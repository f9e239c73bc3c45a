# IoTSphere in nine words; `make` alone explains them. Nothing is installed outside .venv, .servers and .iotsphere.
.POSIX:
.PHONY: help setup check test compiled bench docs run up down lock
# Compiled modules are kept: the tests and the benchmark start many processes.
PY = PYTHONDONTWRITEBYTECODE= .venv/bin/python
# What is also tested compiled: the message path, and what a killed process leaves.
COMPILED = tests/adapters/mqtt tests/adapters/client/test_delivery.py tests/adapters/client/test_shared_frames.py \
	tests/gateways/mqtt/test_connect.py tests/gateways/mqtt/test_publish.py tests/gateways/mqtt/test_subscribe.py \
	tests/gateways/mqtt/test_turn.py tests/drivers/redis/test_redis_log.py tests/use_cases/test_round.py \
	tests/faults/test_kill.py tests/faults/test_exactly_once.py
LOCK = uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet

help:
	@echo 'make setup   make .venv with everything that developing needs (needs Python 3.11+)'
	@echo 'make check   linters, types and import contracts'
	@echo 'make test    real servers for the tests, then check, then every test (about a quarter of an hour on 2 cores)'
	@echo 'make bench   benchmarks; QUICK=1 for a short round'
	@echo 'make compiled   the message path as native code in .compiled/package, and its tests (needs a C compiler)'
	@echo 'make docs    write the generated reference pages and check every page'
	@echo 'make run     the gateway with simulated devices; data in .iotsphere; Ctrl-C ends it'
	@echo 'make up      the production shape in containers (needs Docker with Compose)'
	@echo 'make down    stop it; its data stays in named volumes'

setup:
	@.ci/venv dev

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

test: setup
	@$(PY) tests/support/provision.py
	@$(PY) tests/support/prepare_spark.py & prepared=$$!; $(MAKE) check && wait $$prepared
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

compiled: setup
	@.ci/compiled
	IOTSPHERE_SOURCES=.compiled/package $(PY) -m pytest -n 3 --dist loadfile -o pythonpath='.compiled/package .' $(COMPILED)

# A short round takes what is there; a whole one measures what production runs.
bench: setup
	@$(PY) tests/support/provision.py --peers
	@[ -n "$${QUICK:-}" ] || .ci/compiled
	if .ci/compiled current; then export IOTSPHERE_SOURCES=.compiled/package; fi; $(PY) -m bench $${QUICK:+--quick} $(ARGS)

docs: setup
	$(PY) docs/pages.py
	$(PY) -m pytest -q tests/test_docs.py

run:
	@.ci/venv run
	@trap : INT; $(PY) -m iotsphere up --demo --data .iotsphere $(ARGS) || { \
		code=$$?; [ $$code -ne 2 ] || \
		echo "With make, options such as --data DIR go into ARGS: make run ARGS='--data DIR'" >&2; exit $$code; }

up:
	@deploy/secrets.sh
	docker compose up --build --detach --wait

down:
	docker compose down

# Maintainers only, after a change of the dependencies in pyproject.toml; see CONTRIBUTING.md. Needs uv.
lock:
	$(LOCK) --extra demo pyproject.toml -o requirements.lock
	$(LOCK) --group build -o requirements-build.lock
	$(LOCK) --group compiled -c requirements-build.lock -o requirements-compiled.lock
	$(LOCK) --all-extras --group dev pyproject.toml -c requirements.lock -c requirements-compiled.lock -o requirements-dev.lock
