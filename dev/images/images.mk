BASE ?= localhost/falcon-base:bookworm
TORCH_VENV := $(FALCON_CACHE)/torch/venv

.PHONY: images torch-venv
images: venv cluster-build ## build the images whose inputs changed, into FALCON_CACHE/images (BASE: another Debian image)
	@$(PY) -m dev.images --base $(BASE)

torch-venv: $(TORCH_VENV)/.done ## today's PyTorch wheel (pinned), for tests on this machine and as a pod's host volume

# One training step at the end writes the bytecode, which no pod can in a read-only volume.
$(TORCH_VENV)/.done: constraints-torch.txt $(UV)
	@$(UV) venv -q --clear --python python3.11 $(TORCH_VENV)
	@$(UV) pip install -q --link-mode hardlink --python $(TORCH_VENV)/bin/python -c constraints-torch.txt torch numpy
	@ln -sfn venv/lib/python3.11/site-packages $(FALCON_CACHE)/torch/site
	@RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 $(TORCH_VENV)/bin/python examples/train_gpt.py --steps 1 >/dev/null
	@touch $@
