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
export FALCON_CACHE VENV
export PATH := $(VENV)/bin:$(FALCON_CACHE)/bin:$(PATH)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

## -- tools ---------------------------------------------------------------------------------------------------------
$(UV): constraints.txt
	@python3 -m venv $(FALCON_CACHE)/uv
	@$(FALCON_CACHE)/uv/bin/pip install -q -c constraints-uv.txt uv
	@touch $@

$(VENV)/.done: pyproject.toml constraints.txt $(UV)
	@$(UV) venv -q --allow-existing --python python3.11 $(VENV)
	@$(UV) pip install -q --python $(PY) -c constraints.txt -e '.[operator,agent]' --group dev
	@touch $@

.PHONY: venv
venv: $(VENV)/.done ## install the Python tools and dependencies (pinned) into FALCON_CACHE

.PHONY: constraints
constraints: $(UV) ## pin the newest versions again (writes constraints.txt)
	$(UV) pip compile -q --upgrade --all-extras --group dev --no-header --no-annotate --no-emit-index-url pyproject.toml -o constraints.txt
