# Everything a person or the CI runs. `make` alone lists it.
.DEFAULT_GOAL := help
GO ?= go

# The end-to-end tests run without -race, against the binary that users get. lint vets
# what the tests need not vet again.
UNIT = $$($(GO) list ./... | grep -v '/e2e$$')

# The name that deploy/compose and deploy/kubernetes ask for.
IMAGE ?= qsidecar/qsidecar:1.0.0

.PHONY: help run build release test soak together unit e2e modules image bench lint audit fuzz need clean

##@ To use it

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / {print (n++ ? "\n" : "") substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build, and serve on the embedded database
	@exec ./bin/qsidecar serve --hint

##@ To build it

build: ## build the static binary, bin/qsidecar
	@GO="$(GO)" scripts/build.sh

image: build ## build the container image with buildah, and print its size (IMAGE=name:tag)
	@command -v buildah >/dev/null || scripts/need.sh buildah
	@GO="$(GO)" deploy/image/build.sh bin/qsidecar $(IMAGE)
	@buildah images $(IMAGE)

release: ## what a release is made of, in dist/: archives, packages, checksums
	@GO="$(GO)" scripts/release.sh

clean: ## remove what was built
	rm -rf bin dist

##@ To check it

test: ## every check, at a tenth of the full size (some minutes), and the servers it ran on
	@scripts/ran.sh $(MAKE) --no-print-directory together

soak: ## every check, at full size
	@QSIDECAR_SOAK=1 scripts/ran.sh $(MAKE) --no-print-directory lint unit modules e2e

# All kinds of tests wait for much of their time, for a disk or for time to pass.
together: need build
	@MAKE="$(MAKE)" scripts/together.sh e2e modules unit lint

unit: need ## the packages' tests, with the race detector
	CGO_ENABLED=1 QSIDECAR_TEST_MEMORY=/dev/shm $(GO) test -race -shuffle=on -timeout $(if $(QSIDECAR_SOAK),60m,30m) -vet=off $(UNIT)

e2e: need build ## the tests that drive the built binary
	cd e2e && QSIDECAR_TEST_MEMORY=/dev/shm QSIDECAR_BIN=$(CURDIR)/bin/qsidecar $(GO) test -count=1 -shuffle=on $(if $(QSIDECAR_SOAK),,-parallel 4) -timeout $(if $(QSIDECAR_SOAK),180m,30m) -vet=off $(ARGS)

modules: need build ## the tests of bench and deploy, which are modules of their own
	cd bench && QSIDECAR_BIN=$(CURDIR)/bin/qsidecar $(GO) test -count=1 -vet=off ./...
	cd deploy && QSIDECAR_BIN=$(CURDIR)/bin/qsidecar $(GO) test -count=1 -vet=off ./...

lint: ## gofmt, golangci-lint (go vet is in it) in each module, actionlint and shellcheck
	@bad=$$(gofmt -l .); test -z "$$bad" || { echo "gofmt these: $$bad" >&2; exit 1; }
	@scripts/need.sh shellcheck
	shellcheck $$(git ls-files '*.sh' .ci/run)
	$(GO) tool -modfile=tools/go.mod actionlint
	$(GO) tool -modfile=tools/lint/go.mod golangci-lint run ./...
	cd bench && $(GO) tool -modfile=../tools/lint/go.mod golangci-lint run ./...
	cd deploy && $(GO) tool -modfile=../tools/lint/go.mod golangci-lint run ./...

audit: ## known vulnerabilities, by govulncheck (asks vuln.go.dev; GitHub's workflow runs it)
	@GO="$(GO)" scripts/audit.sh $(ARGS)

fuzz: ## every fuzz target, 30 s each (FUZZTIME=5m for longer)
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

need: ## install what the tests need and this machine lacks
	@scripts/need.sh cc python3 venv ruby nc mandoc socat perl php cobol strace mount npm buildah bwrap machine shellcheck pgbouncer debs

##@ To measure it

bench: need build ## what the program reaches beside direct SQL (some minutes; ARGS="-engine postgres", see bench/README.md)
	@cd bench && $(GO) build -o ../bin/bench .
	@exec ./bin/bench -bin bin/qsidecar $(ARGS)
