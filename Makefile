# Falcon. `make help` lists the targets. Everything that is built or installed goes to FALCON_CACHE, outside the tree.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

FALCON_CACHE ?= $(HOME)/.cache/falcon
CHECKOUT := $(shell pwd | sha256sum | cut -c1-8)
VENV := $(FALCON_CACHE)/venv-$(CHECKOUT)
UV := $(FALCON_CACHE)/uv/bin/uv
PY := $(VENV)/bin/python
export FALCON_CACHE VENV UV
export PATH := $(VENV)/bin:$(FALCON_CACHE)/bin:$(PATH)
# Where it is set, as in many images, each of the tests' thousand processes compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

## -- tools ---------------------------------------------------------------------------------------------------------
$(UV): constraints.txt
	@python3 -m venv $(FALCON_CACHE)/uv
	@$(FALCON_CACHE)/uv/bin/pip install -q -c constraints-uv.txt uv
	@touch $@

$(VENV)/.done: pyproject.toml constraints.txt $(UV)
	@$(UV) venv -q --allow-existing --python python3.11 $(VENV)
	@$(UV) pip install -q --python $(PY) -c constraints.txt -e '.[operator,anomaly,agent,nvml,sim,plot]' --group dev
	@touch $@

.PHONY: venv
venv: $(VENV)/.done ## install the Python tools and dependencies (pinned) into FALCON_CACHE

.PHONY: constraints
constraints: $(UV) ## pin the newest versions again (writes constraints.txt)
	$(UV) pip compile -q --upgrade --all-extras --group dev --no-header --no-annotate --no-emit-index-url pyproject.toml -o constraints.txt

-include dev/cluster/cluster.mk dev/images/images.mk shim/shim.mk charts/falcon/chart.mk core/falcon_etcd/proto.mk gateway/gateway.mk

## -- the main job --------------------------------------------------------------------------------------------------
RECORDING ?= examples/recordings/straggler

.PHONY: replay recording demo demo-down
replay: venv ## see Falcon judge a real slowdown, without a cluster: replay a recording (RECORDING: another folder)
	@falcon-agent replay $(RECORDING)

recording: venv shim torch-venv ## record a real job with a slow rank into FALCON_CACHE/recording (root; a minute)
	@$(PY) -m dev.recording $(FALCON_CACHE)/recording

demo: venv cluster-up images ## the whole story on a local cluster: install, train, slow a node, diagnosis, repair
	@$(PY) -m dev.demo

demo-down: ## remove the demo's cluster and all that it left (images and binaries stay cached)
	@$(MAKE) cluster-down

## -- checks --------------------------------------------------------------------------------------------------------
PYTHON_DIRS := core operator agent cli dev tests examples benchmarks evaluation
SHELL_FILES = $(shell git ls-files '*.sh' .ci/run)
MODULE_PATH := core:operator:agent:cli

.PHONY: lint format types test test-one test-unit test-integration test-versions test-slow test-gpu test-e2e test-e2e-long test-soak
lint: venv shim-lint gateway-lint chart-lint ## ruff, import-linter, vermin, limits of size, go vet, clang-format, clang-tidy, shellcheck, helm lint, prose, imports of the tests that need a cluster or a GPU
	@ruff check -q $(PYTHON_DIRS)
	@ruff format -q --check $(PYTHON_DIRS)
	@lint-imports --no-cache >/dev/null || lint-imports --no-cache
	@vermin -q --violations -t=3.6- agent/falcon_start agent/falcon_site agent/falcon_bench
	@vermin -q --violations -t=3.8- agent/falcon_torch
	@$(PY) -m dev.limits
	@$(PY) -m dev.crd --check
	@shellcheck $(SHELL_FILES)
	@$(PY) -m dev.prose
	@$(PY) -m dev.docstrings
	@$(PY) -m dev.fidelity
	@pytest --collect-only -q tests/e2e tests/gpu >/dev/null || pytest --collect-only -q tests/e2e tests/gpu
	@echo "lint: ok"

format: venv shim-format ## rewrite the sources in the project's format
	@ruff check -q --fix $(PYTHON_DIRS)
	@ruff format -q $(PYTHON_DIRS)
	@$(PY) -m dev.prose --write
	@$(PY) -m dev.fidelity --write

types: venv ## mypy --strict
	@mypy --cache-dir $(FALCON_CACHE)/mypy
	@echo "types: ok"

test-one: venv ## run some tests, e.g. TEST="tests/unit/signals -k evaluation" (what they need is built: docs/developer.md)
	@pytest $(TEST)

test-unit: venv shim-test gateway-test ## pure logic, with the C++ and Go unit tests (five minutes)
	@pytest tests/unit tests/stories -m "not slow" -n 2

test-integration: venv shim shim-test-programs gateway cluster-build torch-venv nccl-releases ## real etcd, kube-apiserver, PyTorch and shim; no cluster
	@$(PY) -m dev.cluster.packages
	@$(PY) -m dev.repeat tests/integration -m "not alone and not slow" -n 6
	@$(PY) -m dev.repeat tests/integration -m "alone and not slow"

VERSIONS ?= 1.33 1.34 1.35
TESTS_OF_API := $(addprefix tests/integration/,api chart agent/test_node.py packaging/test_plugin.py \
	$(addprefix operator/,test_kube.py test_reflector.py test_rights.py drains/test_evictions.py))

test-versions: venv cluster-build ## what depends on the API server, with other versions of Kubernetes (VERSIONS="1.33 1.34 1.35")
	@failed=; for version in $(VERSIONS); do echo "Kubernetes $$version"; \
	$(PY) -m dev.cluster build --api $$version && \
	FALCON_KUBERNETES=$$version $(PY) -m dev.repeat $(TESTS_OF_API) -n 2 || failed="$$failed $$version"; done; \
	[ -z "$$failed" ] || { echo "test-versions: failed with Kubernetes$$failed"; exit 1; }

test-slow: venv shim shim-test gateway cluster-build torch-venv ## unit and integration tests that take long and are shown by others in part
	@$(PY) -m dev.cluster.packages
	@pytest tests/unit tests/stories tests/integration -m "slow and not alone" -n 2
	@pytest tests/integration -m "slow and alone"

test-gpu: venv shim torch-venv ## the shim with a real NCCL: two ranks on one GPU or two; skipped, with the reason, without
	@pytest tests/gpu

test-e2e: venv cluster-up images ## the real cluster: training, faults, repair
	@$(PY) -m dev.repeat tests/e2e -m "not soak and not long" --timeout 1800 --durations 20

test-e2e-long: venv cluster-up images ## what takes minutes a test and is shown by others in part
	@pytest tests/e2e -m long --timeout 1800 --durations 20

test-soak: venv cluster-up images ## ten healthy minutes on the real cluster raise nothing
	@pytest tests/e2e -m soak --timeout 2400

test: lint types test-unit test-integration ## everything that needs no cluster

.PHONY: plugin
plugin: venv ## the kubectl plugin's archive and manifest for Krew, into dist/ (URI=… from where Krew fetches it)
	@$(PY) -m dev.plugin dist $(if $(URI),--uri $(URI))

.PHONY: clean-cache
clean-cache: ## remove every binary, image and environment that the project built
	@$(MAKE) cluster-down
	rm -rf $(FALCON_CACHE)
