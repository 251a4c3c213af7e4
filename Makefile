# Every word here makes what it needs: a virtual environment first, then the job.
#   make demo   train CartPole with two workers, kill one, show its shards come back
#   make test   unit, contract, machine and loop tests on real servers
#   make lint   ruff, mypy, import floors, compose and Dockerfile checks
#   make e2e    whole runs through the command line; then, side by side for neither minds, compose on a Docker engine and
#               every public environment against a plain loop
#   make chaos  2,000 simulated schedules and every planted bug, then real processes, real signals: first what measures
#               times, alone, then the rest two at a time
#   make bench  figures of this machine; make bench-peers: other libraries at the same workloads, installed into .bench/
#   make soak   the long version of chaos, by hand
PY ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)

# A folder of wheels, when pip knows one, is where a CPU build of torch comes from. Otherwise uv asks for the CPU
# backend by name; plain pip without either takes whatever the index calls torch, which on Linux is a CUDA build.
LINKS := $(or $(UV_FIND_LINKS),$(PIP_FIND_LINKS),$(shell $(PY) -m pip config get global.find-links 2>/dev/null))
ifneq ($(strip $(LINKS)),)
export UV_FIND_LINKS := $(LINKS)
else
export UV_TORCH_BACKEND ?= cpu
endif
INSTALL = $(if $(UV),$(UV) pip install -q --python $(BIN)/python,$(BIN)/python -m pip install -q)

.PHONY: demo test lint e2e chaos bench bench-peers soak fmt clean env dev lock

env: $(VENV)/.ready
dev: $(VENV)/.ready-dev

# What a user has; it is all that the demo needs.
$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(if $(UV),$(UV) venv -q --python $(PY) $(VENV),$(PY) -m venv $(VENV))
	@echo "installing torch and what Heddle needs into $(VENV), once; this takes a minute or some"
	$(INSTALL) -c constraints.txt torch
	$(INSTALL) -c constraints.txt -e '.[torch]'
	touch $@

# The tests want more: tools, and every package of environments, networks and data that Heddle works with.
$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "installing the tools and packages of the tests into $(VENV), once; this takes some minutes"
	$(INSTALL) -c constraints.txt -e '.[torch,dev]'
	touch $@

demo: env
	$(BIN)/heddle demo

# Three at a time on two cores: much of a test is waiting for a process, a socket or a lease. Whole runs and what is killed
# in them have deadlines: two at a time.
TEST_JOBS ?= 3
RUN_JOBS ?= 2
# What fails is run once more: what passes then is listed as unsteady, and more than two of those fail the run.
AGAIN := --reruns 1 --reruns-delay 1
# What takes long is named: all suites together have 40 minutes.
SLOWEST := --durations 15 --durations-min 4

test: dev
	$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist worksteal $(SLOWEST) $(AGAIN)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff check --ignore-noqa --config tests/ruff-unsafe.toml heddle
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	tests/check_deploy.sh $(BIN)

fmt: dev
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

e2e: dev
	$(BIN)/python -m pytest -q tests/e2e --ignore tests/e2e/test_compose.py --timeout 600 -n $(RUN_JOBS) --dist loadfile $(SLOWEST) $(AGAIN)
	HEDDLE_SOAK=1 $(BIN)/python -m pytest -q tests/conformance --timeout 600 -n $(RUN_JOBS) --dist worksteal > $(VENV)/conformance.log 2>&1 & conformance=$$!; \
	$(BIN)/python -m pytest -q tests/e2e/test_compose.py --timeout 900 $(AGAIN); composed=$$?; \
	wait $$conformance; conforms=$$?; cat $(VENV)/conformance.log; test $$composed$$conforms = 00

chaos: dev
	$(BIN)/python -m tests.simulation --seeds 0:2000
	$(BIN)/python -m tests.simulation --bugs --least 60
	$(BIN)/python -m tests.simulation --shown
	$(BIN)/python -m pytest -q tests/chaos -m alone --timeout 900 $(SLOWEST)
	$(BIN)/python -m pytest -q tests/chaos -m "not alone" --timeout 900 -n $(RUN_JOBS) --dist loadfile $(SLOWEST)

bench: dev
	$(BIN)/python -m benchmarks

bench-peers: dev
	$(BIN)/python -m benchmarks.peers

soak: dev
	$(BIN)/python -m tests.chaos.soak --kills 3000 --stops 1000 --restarts 100 --minutes 30
	HEDDLE_SOAK=1 $(BIN)/python -m pytest -q tests/chaos tests/fuzz tests/machine tests/loops/test_trackers.py tests/e2e/test_learners_learn.py tests/e2e/test_many.py --timeout 7200
	$(BIN)/python -m tests.simulation --seeds 0:200000 --state $(VENV)/soak-seeds.json

# Only constraints.txt is committed: a uv.lock would record the addresses of whoever made it.
lock:
	printf 'torch==2.13.0\n' > .pins && env -u UV_FIND_LINKS -u PIP_FIND_LINKS uv pip compile -q --universal --no-emit-index-url \
	  --no-annotate --no-header pyproject.toml --extra torch --extra dev -c .pins -o constraints.txt; rm -f .pins

clean:
	rm -rf $(VENV) .heddle runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .bench build dist
