PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
QUICK := $(addprefix tests/test_,targets.py bandwidths.py equation.py walks.py modes.py adaptive.py posterior.py storage.py)

.PHONY: demo test quick lint docs bench clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py --out out/demo

test: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The heart of it: laws of kernels, targets, weights, the automatic fit.
quick: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(QUICK)

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet --site-dir out/docs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: .venv/.bench
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.solvers
	$(BIN)/python -m benchmarks.queries
	$(BIN)/python -m benchmarks.posteriors --peers
	$(BIN)/python -m benchmarks.posteriors --sharpen
	$(BIN)/python -m benchmarks.zoo
	$(BIN)/python -m benchmarks.zoo --hierarchical
	$(BIN)/python -m benchmarks.logistic
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.workflow
	$(BIN)/python -m benchmarks.refit
	$(BIN)/python -m benchmarks.scale

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

.venv/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	touch $@

clean:
	rm -rf .venv out build dist
