# etcd's message classes, generated from its own .proto files. Included by the Makefile; needs Go to fetch the module.
ETCD_API := go.etcd.io/etcd/api/v3@v3.6.8

.PHONY: proto
proto: venv ## regenerate core/falcon_etcd/_proto from etcd's .proto files
	@module=$$(go mod download -json $(ETCD_API) | $(PY) -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'); \
	stage=$$(mktemp -d); trap 'rm -rf "$$stage"' EXIT; \
	$(PY) core/falcon_etcd/_generate.py "$$module" "$$stage"; \
	$(PY) -m grpc_tools.protoc --proto_path="$$stage" --python_out=core --pyi_out=core "$$stage"/falcon_etcd/_proto/*.proto
