.PHONY: images torch-venv
images: cluster-build ## build the operator, agent, etcd and trainer images (BASE_IMAGE=… for a public base)
	@$(PY) -m dev.images

TORCH_SITE := $(FALCON_CACHE)/torch/site
torch-venv: $(TORCH_SITE)/.done ## today's PyTorch, for tests on the host and as a read-only host volume

$(TORCH_SITE)/.done: constraints-torch.txt $(UV)
	@echo "installing PyTorch into $(TORCH_SITE)"
	@$(UV) pip install -q --python python3.11 --target $(TORCH_SITE) -c constraints-torch.txt torch numpy
	@touch $@
