# `make demo` trains a first model; `make test` is what CI runs. Both build .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo test test-all check unit processes cluster bench lock clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.lock
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: install
	$(BIN)/hetero demo

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

unit: install
	$(BIN)/python -m pytest tests/architecture tests/unit -m "not slow and not gpu" -n 2 --dist worksteal

processes: install
	$(BIN)/python -m pytest tests/processes -m "not slow and not gpu"

cluster: install
	$(BIN)/python -m pytest tests/cluster tests/e2e -m "not slow and not gpu"

test: check unit processes cluster

test-all: check
	$(BIN)/python -m pytest tests -m "not gpu"

bench: install
	$(BIN)/python -m benchmarks.peers

lock: install
	$(BIN)/pip freeze --exclude-editable > requirements.lock

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
