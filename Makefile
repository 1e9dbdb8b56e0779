# Everything a person or the CI runs. `make` alone lists it.
.DEFAULT_GOAL := help
GO ?= go

# The end-to-end tests start many processes, so they run by themselves and
# without -race, against the binary that users get.
UNIT = $$($(GO) list ./... | grep -v '/e2e$$')

.PHONY: help run build test soak unit e2e bench lint fuzz need clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build, and serve on the embedded database
	@exec ./bin/qsidecar serve --hint

build: ## build the static binary, bin/qsidecar
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/qsidecar ./cmd/qsidecar

test: ## every check, at a tenth of the full size (some minutes), and the servers it ran on
	@scripts/ran.sh $(MAKE) --no-print-directory lint unit e2e

soak: ## every check, at full size
	@QSIDECAR_SOAK=1 scripts/ran.sh $(MAKE) --no-print-directory lint unit e2e

unit: need ## the packages' tests, with the race detector
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout $(if $(QSIDECAR_SOAK),60m,10m) $(UNIT)

e2e: need build ## the tests that drive the built binary
	cd bench && QSIDECAR_BIN=$(CURDIR)/bin/qsidecar $(GO) test -count=1 ./...
	cd e2e && QSIDECAR_BIN=$(CURDIR)/bin/qsidecar $(GO) test -count=1 -shuffle=on -timeout $(if $(QSIDECAR_SOAK),180m,15m) $(ARGS)

bench: need build ## what the program reaches beside direct SQL (some minutes; ARGS="-engine postgres", see bench/README.md)
	@cd bench && $(GO) build -o ../bin/bench .
	@exec ./bin/bench -bin bin/qsidecar $(ARGS)

lint: ## gofmt, go vet and actionlint
	@bad=$$(gofmt -l .); test -z "$$bad" || { echo "gofmt these: $$bad" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod actionlint
	cd bench && $(GO) vet ./...

fuzz: ## every fuzz target, 30 s each (FUZZTIME=5m for longer)
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

need: ## install what the tests need and this machine lacks
	@scripts/need.sh cc python3 venv ruby nc socat perl php cobol mount npm pgbouncer debs

clean: ## remove what was built
	rm -rf bin
