# The two commands of the README are `make demo` and `make test`; each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test fast check docs bench results dist dist-check lowest clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rcalign needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || { echo "Creating $(VENV) (once; a few minutes, about 6 GB with torch)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[all,docs,dev]'
	@touch $(READY)

demo: setup
	@$(BIN)/rcalign demo

test: setup
	$(BIN)/python -m pytest

fast: setup
	$(BIN)/python -m pytest -m 'not slow'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --doctest-modules src/rcalign

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The site is in site/index.html"

bench: setup
	@$(BIN)/python -m bench

results: setup
	@$(BIN)/python -m results $(STUDY)

dist: setup
	rm -rf build dist
	$(BIN)/python -m build --no-isolation
	@ls -l dist

# The wheel with all that it depends on, in an empty environment (about 6 GB, removed at the end), used from outside.
dist-check: dist
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch/env" && \
	  "$$scratch/env/bin/python" -m pip install --disable-pip-version-check dist/*.whl && cd "$$scratch" && \
	  env -u PYTHONPATH env/bin/python "$(CURDIR)/tests/release/use_installed.py"

# The fast tests with every dependency at its lowest allowed version, in a scratch environment (removed at the end).
lowest: setup
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch/env" && \
	  $(BIN)/python tests/release/lowest.py > "$$scratch/lowest.txt" && \
	  "$$scratch/env/bin/python" -m pip install --disable-pip-version-check -c "$$scratch/lowest.txt" '.[all,dev]' && \
	  "$$scratch/env/bin/python" -m pytest -m 'not slow'

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
