# Every target works alone on a fresh clone with nothing but Python >= 3.11, make and git:
# what it needs is installed into .venv from the locks, by hash and as wheels only.
#
#   make demo     see a loop survive kill -9        make check    format, lint, types, imports
#   make test     the suite; ARGS="-k name"         make bench    figures as JSON lines
#   make test-slow  what takes longer: every window of a kill, the examples as a whole
#   make test-long  the same windows without message ids, which nothing may depend on
#   make dev      server, engine and worker; APP=   make lock     renew the locks; UPGRADE=1
#   make install  only prepare .venv                make clean    back to a fresh clone
#   make backends traces in real backends, not part of the suite: Linux, 1.7 GB; BACKENDS=mlflow

PYTHON ?= python3
VENV ?= .venv
APP ?= examples/hello.py
# Most tests wait for processes, so more of them at once than there are cores.
JOBS ?= 3
BIN := $(VENV)/bin

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Wheels only: no package's own build script runs here.
PIP_LOCKED := $(PIP) install --quiet --require-hashes --only-binary :all:
# The project itself; its build backend comes from the lock, so nothing is looked up.
PIP_PROJECT := $(PIP) install --quiet --no-deps --no-index --no-build-isolation --editable .

# Pyright runs on the node of its wheel, and does not ask whether it is the newest version.
export PYRIGHT_PYTHON_GLOBAL_NODE := off
export PYRIGHT_PYTHON_IGNORE_WARNINGS := on

.PHONY: demo test test-slow test-long check format bench mutate chaos backends dev install lock clean
.DEFAULT_GOAL := install

demo: $(VENV)/demo.stamp
	$(BIN)/treadle demo $(ARGS)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) -m "slow and not long" $(ARGS)

test-long: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(JOBS) -m long $(ARGS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp
	$(BIN)/python -m bench $(ARGS)

# Is every rule of the core stated by some test? Survivors are explained in docs/mutation.md.
mutate: $(VENV)/dev.stamp
	$(BIN)/python tests/mutation.py $(ARGS)

# Seeded trials of kills, pauses and lost answers; the table is in docs/chaos.md.
chaos: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos $(ARGS)

# Runs whose processes are killed, as arize-phoenix and MLflow show them; pictures go to SHOTS.
# All of it in a network of its own: Phoenix listens on every interface that it finds.
BACKENDS ?= phoenix mlflow
BACKENDS_VENV := $(VENV)/backends
SHOTS ?= build/shots
ALONE := unshare --map-root-user --net sh -c 'ip link set lo up && exec "$$@"' sh

backends: $(VENV)/dev.stamp $(BACKENDS:%=$(BACKENDS_VENV)/%.stamp)
	@command -v chromium >/dev/null || echo "no chromium here: no pictures are taken"
	$(ALONE) env TRACE_BACKENDS="$(BACKENDS)" TRACE_BACKENDS_VENV=$(BACKENDS_VENV) TRACE_SHOTS=$(SHOTS) \
		$(BIN)/python -m pytest tests/backends -v --durations=0 --durations-min=1 $(ARGS)

# Each in an environment of its own: they depend on different versions of the same packages.
$(BACKENDS_VENV)/%.stamp: tests/backends/requirements-%.txt | $(BIN)/python
	$(PYTHON) -m venv $(BACKENDS_VENV)/$*
	$(BACKENDS_VENV)/$*/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
		--only-binary :all: -r $<
	@touch $@

dev: $(VENV)/demo.stamp
	$(BIN)/treadle dev $(APP)

install: $(VENV)/dev.stamp

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Treadle needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml requirements.lock requirements-build.lock | $(BIN)/python
	$(PIP_LOCKED) -r requirements.lock -r requirements-build.lock
	$(PIP_PROJECT)
	@touch $@

$(VENV)/dev.stamp: pyproject.toml requirements-dev.lock | $(BIN)/python
	$(PIP_LOCKED) -r requirements-dev.lock
	$(PIP_PROJECT)
	@touch $@ $(VENV)/demo.stamp

# Resolved for every platform at once. The tool that resolves is no dependency of the project.
LOCK_VENV := $(VENV)/lock
LOCK = $(LOCK_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --annotation-style line --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

lock: | $(BIN)/python
	$(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --only-binary :all: 'uv>=0.9'
	$(LOCK) pyproject.toml --extra dev --group build --output-file requirements-dev.lock
	$(LOCK) pyproject.toml --extra all --constraints requirements-dev.lock --output-file requirements.lock
	$(LOCK) --group build --constraints requirements-dev.lock --output-file requirements-build.lock
	rm -rf $(LOCK_VENV)

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
