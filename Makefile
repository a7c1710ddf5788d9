# Everything runs in a virtual environment of its own; a fresh machine needs Python >= 3.11 only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CPUS ?= 2

.PHONY: setup demo test check format bench soak clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and "Parformer needs Python 3.11 or later, this is %d.%d; name another with: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/parformer fit python-source --time 6m --limit latency=0.8x --run runs/demo

test: $(READY)
	$(BIN)/python -m pytest -n $(CPUS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini --cache-dir .mypy_cache/benchmarks benchmarks

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 -e '.[bench]'
	$(BIN)/python benchmarks/inference.py --write
	$(BIN)/python benchmarks/decoding.py --write
	$(BIN)/python benchmarks/training.py --write
	$(BIN)/python benchmarks/search.py --write
	$(BIN)/python benchmarks/recurrence.py --write

soak: $(READY)
	$(BIN)/python -m pytest -n $(CPUS) -m soak

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
