# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint types docs check-torch benchmark judges results clean

demo: $(READY)
	$(BIN)/gpin demo

# Three processes on two cores, because some tests wait for processes that they start. Each begins with a third of the files
# (worksteal), so that what the tests of a file share is made once and not three times.
test: lint types check-torch
	$(BIN)/pytest -n 3 --dist worksteal -m "not slow and not pages"

test-all: lint types check-torch
	$(BIN)/pytest -n 3 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest -n 2 -m pages tests/test_docs.py

# Only warns: gpin also runs with other builds of torch than the one it is tested with.
check-torch: $(READY)
	@$(BIN)/python scripts/check_torch.py

benchmark: $(READY)
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/training.py

# References from outside: sbibm's posteriors and sbi's checks. Takes hours, and continues where it stopped.
judges: $(READY)
	$(BIN)/python benchmarks/judges/run.py

# The tables, figures and pages of results/, from the stores there, and the two figures of README.md that show them.
results: $(READY)
	$(BIN)/python results/make_results.py
	$(BIN)/python scripts/accuracy_cost.py
	$(BIN)/python scripts/claims.py

# torch comes first and alone, so that nothing can pull another build of it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv benchmarks/.venv benchmarks/judges/.venv benchmarks/judges/.models build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
