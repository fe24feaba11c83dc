# `make run` and `make test` set everything up by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXPERIMENT ?= nvswitch

N ?= 500
SEED ?= 1

.PHONY: run test controls storm lint format bench docs system clean

run: $(READY)
	$(BIN)/chaos run $(EXPERIMENT)

test: $(READY) system
	$(BIN)/python -m pytest

controls: $(READY)
	$(BIN)/python -m tests.run_controls

# Kills controllers, agents and guardians N times on a lab that stays, and looks into the kernel after each trial. Root.
storm: $(READY)
	$(BIN)/python -m tests.storm --kills $(N) --seed $(SEED)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m bench.all

# The pages of the faults, from what the injectors say of themselves.
docs: $(READY)
	$(BIN)/python tools/fault-pages

# Exact versions come from constraints.txt. In setuptools' other editable mode every start of Python pays for a finder.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --config-settings editable_mode=compat -e '.[lab,dev]'
	touch $@

# What the tests need of the system: a browser that looks at the scorecard, a systemd that ends sessions, nft as a second
# opinion, a Docker engine, an sshd, a Slurm, a virtual machine with RDMA.
system:
	@tools/system-packages chromium fonts-dejavu-core systemd nftables docker.io runc containerd iptables busybox-static \
	  openssh-server openssh-client sudo openssl slurm-wlm munge qemu-system-x86 kmod iproute2 \
	  ibverbs-utils ibverbs-providers

clean:
	rm -rf $(VENV) .kernel build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
