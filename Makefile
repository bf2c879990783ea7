# Everything a person or a CI job does with this project. `make` alone lists it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# If this is set, as in many container images, each process compiles all of its imports: pandas alone takes a second.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
# The first of these that is new enough makes .venv; `make PYTHON=/path/to/python3.12` chooses another.
PYTHON := $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$candidate >/dev/null 2>&1 \
	&& $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& { echo $$candidate; break; }; done)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: java .venv ## three real nodes join, one after the other: the main job, end to end
	@$(BIN)/cdc-platform demo

.PHONY: demo-live
demo-live: .venv ## a CQL server on loopback that nodes join while it is written to and ingested; needs Java 17
	@cd tests && ../$(BIN)/python -m support.standin.demo_live

.PHONY: demo-cluster
demo-cluster: java .venv ## nodes join a home in an S3 store, by two Spark workers that share no folder; Linux
	@cd tests && ../$(BIN)/python -m support.spark.demo

.PHONY: test
test: java .venv cassandra ## all checks and all tests
	@$(MAKE) --no-print-directory -j 2 checks collected docs
	@$(MAKE) --no-print-directory pytest

.PHONY: checks
checks: .venv ## the style, the direction of imports and the types, in a quarter of a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/pyrefly check --summary=none

.PHONY: docs
docs: .venv ## the docs as a site with search and the API reference, in build/site; broken links fail
	$(BIN)/zensical build --clean --strict

# Tests wait for servers and processes a quarter of the time, so four workers keep two cores busy.
.PHONY: pytest
pytest: .venv collected ## all tests, without the checks
	$(BIN)/pytest -n 4 --no-loadscope-reorder

.PHONY: test-fast
test-fast: .venv ## half a minute: the tests of rules, which write no file and start nothing
	$(BIN)/pytest -q -n 2 --no-loadscope-reorder \
		-m "not files and not spark and not browser and not cassandra and not processes and not dagster and not grid and not long"

.PHONY: test-exhaustive
test-exhaustive: java .venv ## hours: every grid whole, 50 deaths in `up`, 10,000 histories, 2,000 examples a property
	CDC_PLATFORM_HISTORIES=10000 $(BIN)/pytest -q --timeout 36000 tests/generations/test_switch_machine.py tests/cdclog
	$(BIN)/pytest -q --timeout 36000 --hypothesis-profile thorough -m hypothesis
	CDC_PLATFORM_LIVE_HISTORIES=500 $(BIN)/pytest -q --timeout 36000 tests/ingest/test_replica.py \
		tests/ingest/test_late_changes.py
	CDC_PLATFORM_KILLS=all CDC_PLATFORM_LIVE_HISTORIES=25 $(BIN)/pytest -q --timeout 36000 \
		tests/ingest/test_late_generations.py
	CDC_PLATFORM_KILLS=all $(BIN)/pytest -q --timeout 36000 -m grid
	CDC_PLATFORM_KILLS=50 $(BIN)/pytest -q --timeout 36000 tests/faults/test_killed_services.py
	CDC_PLATFORM_SOAK=0.16 $(BIN)/pytest -q --timeout 36000 tests/faults/test_soak.py

.PHONY: simulate
simulate: .venv ## random histories of generation switches until Ctrl-C; those that fail stay in .cache
	@PYTHONPATH=tests $(BIN)/python -m support.simulate_forever

.PHONY: soak
soak: .venv ## a share of a year of a platform with faults, SHARE=0.1; figures and a picture in build/soak; SOAK=options
	@PYTHONPATH=tests $(BIN)/python -m support.soak.year --share $(or $(SHARE),0.1) $(SOAK) build/soak
	@PYTHONPATH=tests $(BIN)/python -m support.soak.plot build/soak/soak.json build/soak/soak.svg

.PHONY: up
up: java .venv ## Dagster's UI and a warm Spark, until Ctrl-C
	@$(BIN)/cdc-platform up

.PHONY: bench
bench: java .venv ## the benchmarks: a table, and JSON in bench/results/
	@$(BIN)/python -m bench

.PHONY: .venv
.venv: .venv/.installed ## Python with every package of requirements.lock, and .venv/bin/cdc-platform

# uv comes from the lock like everything else: pip takes that one entry with its hashes, uv installs the rest. What it has
# fetched and built before it takes without asking an index, which would have it build pyspark again. Python compiles what
# is imported as it is; compiling all takes longer than the demo's first run, and is done where Python may not.
PACKAGES = $(BIN)/uv pip install $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode) --python $(BIN)/python --require-hashes -r requirements.lock

.venv/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.14 is needed and none was found: install python3.11 (Debian: apt-get install python3.11 python3.11-venv), or name one with make PYTHON=..."; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@awk '/^uv==/ { inside = 1 } inside { print } inside && !/\\$$/ { exit }' requirements.lock > .venv/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/uv.txt
	@$(PACKAGES) --quiet --offline 2>/dev/null || $(PACKAGES)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@mkdir -p .venv/src && ln -sfn ../../assets .venv/src/cdc_platform_assets && ln -sfn ../../resources .venv/src/cdc_platform_resources
	@touch $@

.PHONY: java
java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1); \
	test "$${version:-0}" -ge 17 || { echo "Java 17 or 21 is needed and $$java is $${version:-missing}: install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and point JAVA_HOME at it"; exit 2; }

.PHONY: lock
lock: .venv ## update requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --upgrade --extra dev --extra docs \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

# Before the tests, since a first run takes minutes for it, and a test has a time limit.
.PHONY: cassandra
cassandra: .venv ## fetch the CQL server that tests start
	@PYTHONPATH=tests $(BIN)/python -m support.standin.jars

# Not by `make test`, which does without: what is tried on an emulator that is not there is skipped.
.PHONY: emulators
emulators: .venv ## fetch the emulators of stores that tests use where they are there, in minutes; needs npm and go
	@PYTHONPATH=tests $(BIN)/python -m support.store.emulators

.PHONY: peers
peers: ## build a reader on the official Go client, which the benchmark of backlogs compares with; needs go
	@mkdir -p build && cd bench/peers && go build -o ../../build/read-log .

# Once in a checkout: workers that begin at the same moment would each compile all of the tests, and what they import; and
# where Python may not write down what it has compiled, so would each of the hundreds of processes that tests start.
.PHONY: collected
collected: .venv ## compile the project and its tests
	@$(BIN)/python -m compileall -q assets cdc_platform resources tests/support
	@test -n "$(PYTHONDONTWRITEBYTECODE)" || test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q >/dev/null

.PHONY: clean
clean: ## remove .venv, the demo's home and everything that tools left behind
	rm -rf .venv .cache .cdc-platform .pytest_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
