BASE ?= localhost/falcon-base:bookworm
TORCH_VENV := $(FALCON_CACHE)/torch/venv
TORCH_DONE := $(TORCH_VENV)/.done-$(shell sha256sum constraints-torch.txt | cut -c1-8)

.PHONY: images torch-venv
images: venv cluster-build gateway ## build the images whose inputs changed, into FALCON_CACHE/images (BASE: another Debian image)
	@$(PY) -m dev.images --base $(BASE) --binaries $(FALCON_CACHE)/bin --binaries $(GATEWAY_OUT)

torch-venv: $(TORCH_VENV)/.compiled ## today's PyTorch wheel (pinned), for tests on this machine and as a pod's host volume

# Known by the pins' content: another checkout of the same ones must not clear it under ranks that run.
$(TORCH_DONE): | $(UV)
	@$(UV) venv -q --clear --python python3.11 $(TORCH_VENV)
	@$(UV) pip install -q --link-mode hardlink --python $(TORCH_VENV)/bin/python -c constraints-torch.txt torch numpy
	@ln -sfn venv/lib/python3.11/site-packages $(FALCON_CACHE)/torch/site
	@touch $@

# Without bytecode each start of a rank compiles 2000 modules (6 CPU seconds of 9), and a pod cannot write it in a
# read-only volume, nor anybody under PYTHONDONTWRITEBYTECODE. A few files are for newer Pythons and do not compile.
$(TORCH_VENV)/.compiled: $(TORCH_DONE)
	@$(TORCH_VENV)/bin/python -m compileall -q -j 0 $(TORCH_VENV)/lib >/dev/null || true
	@RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 $(TORCH_VENV)/bin/python examples/train_gpt.py --steps 1 >/dev/null
	@touch $@
