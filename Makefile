# Two commands do all the set-up on a fresh machine with python3 and make:
#   make demo   installs into .venv and runs the main job on what is embedded
#   make test   installs into .venv, then lints, type-checks and tests
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
VLLM    := .venv-vllm
SITE    := .venv-docs
SCALE   := .venv-scale
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: audit demo docs test test-docs test-faults test-slurm fuzz test-scale test-vllm test-browser check format bench release clean

demo: $(READY)
	$(BIN)/opasd demo

test: check
	$(BIN)/pytest -n 2 -m "not vllm and not scale"
	@$(BIN)/python tests/vllm/last.py

# Known vulnerabilities in the pinned packages; asks the network, and fails if a package cannot be looked up there.
audit: $(READY)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python -m scripts.audit

# Every fault done to real runs (kills, signals, full disks, damaged files, a soak); writes docs/reliability.md.
test-faults: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.whole --jobs $(or $(JOBS),1)

# Four processes against one, with DDP, FSDP2 and DeepSpeed's ZeRO-2 and ZeRO-3, in an environment of its own.
test-scale: $(SCALE)/.ready
	OMP_NUM_THREADS=1 $(SCALE)/bin/python -m pytest -m scale tests

# Hostile input of nine kinds, a minute each; FUZZ=600 gives each ten.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.fuzz --seconds $(or $(FUZZ),60)

# `opasd sweep --slurm` and examples/clusters/slurm.sh on a real Slurm of one node; installs Debian's where it is missing.
test-slurm: $(READY)
	command -v slurmctld >/dev/null || (apt-get update -qq && apt-get install -qqy --no-install-recommends slurm-wlm munge)
	$(BIN)/pytest -m slurm tests/slurm

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
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md ROADMAP.md CODE_OF_CONDUCT.md docs
	$(BIN)/python -m scripts.links
	$(BIN)/python -m scripts.secret_scan
	$(BIN)/python -m scripts.prose

# The site in site/, with search, built without network; a dead link, an unknown anchor or an undocumented public name fails.
docs: $(READY) $(SITE)/.ready
	$(BIN)/python -m scripts.reference --check
	$(BIN)/python -m scripts.links
	$(BIN)/python -m scripts.prose
	$(SITE)/bin/zensical build --clean --strict

# Every block of the pages that runs, the long ones too (`make test` runs the short ones).
test-docs: $(READY)
	OPASD_ALL_BLOCKS=1 $(BIN)/pytest tests/docs

# `make release VERSION=0.2.0`: version, changelog, tag, wheel and sdist, and a trial of the wheel in a new environment.
release: $(READY)
	$(BIN)/python -m scripts.release $(VERSION)

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

$(SITE)/.ready: constraints.txt
	python3 -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet zensical
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

# DeepSpeed's own kernels are for GPUs: it is built without them.
$(SCALE)/.ready: pyproject.toml constraints.txt
	python3 -m venv $(SCALE)
	$(SCALE)/bin/python -m pip install --quiet --upgrade pip setuptools wheel
	$(SCALE)/bin/python -m pip install --quiet --editable ".[dev]"
	DS_BUILD_OPS=0 $(SCALE)/bin/python -m pip install --quiet --no-build-isolation deepspeed
	$(SCALE)/bin/python -m pip install --quiet --editable ".[deepspeed,quant]"
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) $(SITE) $(SCALE) dist build site
