# The whole set-up is plain venv + pip. Everything below runs from the repository's folder.
PYTHON ?= python3
BIN := .venv/bin
RUNS ?= runs/quick
TORCH ?= $(shell grep '^torch==' constraints.txt)

.PHONY: env run study test lint docs site bench soak clean

env: .venv/.ready

# torch comes first and by its own version: asked for through another package, pip would take a build with CUDA.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; try make PYTHON=python3.11"; exit 2; }
	@echo "building .venv (once; about a minute after downloads)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH) 2>.venv/pip.log || { cat .venv/pip.log; exit 2; }
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' 2>.venv/pip.log || { cat .venv/pip.log; exit 2; }
	@touch $@

run: env
	@$(BIN)/holdfast demo
	@echo
	@echo "How do the methods compare? make study: six of them on four tasks, in about five minutes"

study: env
	@$(BIN)/holdfast models get minilm
	@$(BIN)/holdfast bench quick --out $(RUNS)
	@$(BIN)/holdfast report $(RUNS)

test: env
	$(BIN)/pytest -n 2 --durations=10

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the code and the records write of the documentation.
docs: env
	$(BIN)/holdfast methods --markdown > docs/methods.md
	$(BIN)/python docs/cli.py
	$(BIN)/holdfast report results/small
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/forgetting.py
	$(BIN)/python docs/architecture.py
	$(BIN)/python tests/helpers/public_api.py

# The documentation as a site in build/site. To read it: python -m http.server --directory build/site
site: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: env
	$(BIN)/python benchmarks/speed.py

# Long campaigns: fuzzed files, threads beside a writer, many lessons.
soak: env
	$(BIN)/python tests/soak.py
	$(BIN)/python tests/soak_serve.py

clean:
	rm -rf .venv runs build *.egg-info
