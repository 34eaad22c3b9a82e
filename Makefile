# Two commands do all the set-up on a fresh machine with python3 and make:
#   make demo   installs into .venv and runs the main job on what is embedded
#   make test   installs into .venv, then lints, type-checks and tests
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
VLLM    := .venv-vllm
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: audit demo test test-faults test-vllm test-browser check format bench clean

demo: $(READY)
	$(BIN)/opasd demo

test: check
	$(BIN)/pytest -n 2 -m "not vllm"
	@$(BIN)/python tests/vllm/last.py

# Known vulnerabilities in the pinned packages; asks the network.
audit: $(READY)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# Every fault done to real runs (kills, signals, full disks, damaged files, a soak); writes docs/reliability.md.
test-faults: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.whole

# Real vLLM on the CPU, in an environment of its own; ends with its speed beside that of transformers. It is too large for
# every check: `make test` says when it last passed and whether what it tests has changed since.
test-vllm: $(VLLM)/.ready
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/vllm --junitxml $(VLLM)/results.xml
	$(VLLM)/bin/python tests/vllm/last.py $(VLLM)/results.xml
	OMP_NUM_THREADS=1 $(VLLM)/bin/python benchmarks/engines.py

# The report and the attention viewer in a real browser; installs Debian's chromium and playwright where they are missing.
test-browser: $(READY)
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -qqy --no-install-recommends chromium)
	$(BIN)/python -m pip install --quiet --editable ".[dev,browser]"
	$(BIN)/pytest -m browser tests/browser

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
	$(BIN)/python benchmarks/evaluation.py

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# `vllm serve` asks for a distribution called vllm; triton and torchvision, where something brought them along, break it.
$(VLLM)/.ready: pyproject.toml constraints.txt constraints-vllm.txt tests/vllm/name.py
	python3 -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM)/bin/python -m pip install --quiet --editable . hypothesis pytest pytest-timeout
	$(VLLM)/bin/python -m pip install --quiet --no-deps --requirement constraints-vllm.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchvision triton
	$(VLLM)/bin/python tests/vllm/name.py
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) dist build
