# falcon-gateway, the Go process between the agents and etcd. Included by the Makefile; needs Go 1.26 or newer.
GATEWAY_OUT := $(FALCON_CACHE)/gateway/$(CHECKOUT)
GATEWAY_SOURCES := $(shell find gateway -name '*.go') gateway/go.mod gateway/go.sum
GATEWAY_GO := GOFLAGS=-buildvcs=false go
GATEWAY_TOOLS := $(FALCON_CACHE)/gateway-tools-$(shell sha256sum gateway/tools/go.mod | cut -c1-8)
export GATEWAY_OUT

.PHONY: gateway gateway-programs gateway-test gateway-race gateway-lint gateway-format gateway-proto
gateway: $(GATEWAY_OUT)/falcon-gateway ## build falcon-gateway

$(GATEWAY_OUT)/falcon-gateway: $(GATEWAY_SOURCES)
	@command -v go >/dev/null || { echo "go is not on PATH: install Go 1.26 or newer"; exit 1; }
	@mkdir -p $(GATEWAY_OUT)
	@cd gateway && CGO_ENABLED=0 $(GATEWAY_GO) build -trimpath -ldflags "-s -w" -o $@ ./cmd/falcon-gateway

# the last line of its output is the folder
gateway-programs: gateway $(GATEWAY_OUT)/falcon-agents ## build falcon-gateway and the agents that benchmarks/scale plays
	@echo $(GATEWAY_OUT)

$(GATEWAY_OUT)/falcon-agents: $(GATEWAY_SOURCES)
	@mkdir -p $(GATEWAY_OUT)
	@cd gateway && CGO_ENABLED=0 $(GATEWAY_GO) build -trimpath -ldflags "-s -w" -o $@ ./cmd/falcon-agents

gateway-test: ## the gateway's Go tests, under the race detector
	@cd gateway && CGO_ENABLED=1 $(GATEWAY_GO) test -race ./...

gateway-race: venv ## the gateway's integration tests, with a binary under the race detector
	@mkdir -p $(GATEWAY_OUT)-race
	@cd gateway && CGO_ENABLED=1 $(GATEWAY_GO) build -race -o $(GATEWAY_OUT)-race/falcon-gateway ./cmd/falcon-gateway
	@GATEWAY_OUT=$(GATEWAY_OUT)-race pytest -q tests/integration/gateway

gateway-lint: $(GATEWAY_TOOLS)/staticcheck ## gofmt, go vet and staticcheck on the gateway
	@unformatted=$$(gofmt -l gateway); [ -z "$$unformatted" ] || { echo "run make gateway-format: $$unformatted"; exit 1; }
	@cd gateway && $(GATEWAY_GO) mod tidy -diff && $(GATEWAY_GO) vet ./... && $(GATEWAY_TOOLS)/staticcheck ./...

gateway-format: ## rewrite the Go sources in Go's format
	@gofmt -w gateway

$(GATEWAY_TOOLS)/staticcheck:
	@cd gateway/tools && GOBIN=$(GATEWAY_TOOLS) $(GATEWAY_GO) install tool

gateway-proto: venv $(GATEWAY_TOOLS)/staticcheck ## regenerate the gateway's Go and Python classes from gateway/proto
	@PATH=$(GATEWAY_TOOLS):$$PATH $(PY) -m grpc_tools.protoc --proto_path=gateway/proto \
	  --go_out=gateway/internal/wire --go_opt=paths=source_relative \
	  --go-grpc_out=gateway/internal/wire --go-grpc_opt=paths=source_relative gateway/proto/gateway.proto
	@stage=$$(mktemp -d); trap 'rm -rf "$$stage"' EXIT; mkdir -p "$$stage/falcon_gateway/_proto"; \
	cp gateway/proto/gateway.proto "$$stage/falcon_gateway/_proto/"; \
	$(PY) -m grpc_tools.protoc --proto_path="$$stage" --python_out=core --pyi_out=core \
	  falcon_gateway/_proto/gateway.proto
