# Two commands do all the set-up on a fresh machine with python3 and make:
#   make demo   installs into .venv and runs the main job on what is embedded
#   make test   installs into .venv, then lints, type-checks and tests
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check format bench clean

demo: $(READY)
	$(BIN)/opasd demo

test: check
	$(BIN)/pytest -n 2

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/deptry src

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/attention_loss.py
	$(BIN)/python benchmarks/token_loss.py

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist build
