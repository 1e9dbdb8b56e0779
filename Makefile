# All commands for people and for CI. `make` alone lists them.
.DEFAULT_GOAL := help
GO ?= go

# The image name in deploy/compose and deploy/kubernetes.
IMAGE ?= qsidecar/qsidecar:1.0.0

SUITE ?= test

# As the tests and the program are built, so that they share what they compile.
RUN_SUITE = CGO_ENABLED=0 $(GO) run -trimpath ./scripts/suite
ENGINES := memory sqlite postgres mysql mariadb sqlserver

.PHONY: help run build release image docs reference clean test check soak $(ENGINES:%=test-%) test-cluster flaky flaky-touched cover lint audit fuzz bench rivals bench-smoke

##@ To use it

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / {print (n++ ? "\n" : "") substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build, and serve on the embedded database
	@exec ./bin/qsidecar serve --config none --hint

test: ## show that the program works on this machine (6 minutes; installs what it needs)
	@exec env $(RUN_SUITE) test

##@ To build it

build: ## build the static binary, bin/qsidecar
	@GO="$(GO)" scripts/build.sh

image: build ## build the container image with buildah, and print its size (IMAGE=name:tag)
	@command -v buildah >/dev/null || scripts/need.sh buildah
	@GO="$(GO)" deploy/image/build.sh bin/qsidecar $(IMAGE)
	@buildah images $(IMAGE)

release: ## build the files of a release in dist/: archives, packages, checksums
	@scripts/need.sh venv ruby npm
	@GO="$(GO)" scripts/release.sh

docs: ## build the site of the docs in bin/site, and check its links (SERVE=1 serves it at 127.0.0.1:8000)
	@scripts/need.sh venv npm
	@exec scripts/docs.sh $(if $(SERVE),serve)

reference: ## generate the pages in docs/reference from the code (a test of e2e/metrics prints the table of metrics)
	@scripts/need.sh python3 ruby npm
	$(GO) run ./scripts/reference
	$(GO) run ./cmd/qsidecar man --markdown docs/reference

clean: ## remove bin and dist
	rm -rf bin dist

##@ To check it

check: ## run everything else that CI runs: race detector, lint, all servers, crashes, packages (35 minutes)
	@exec env $(RUN_SUITE) check

test-postgres: ## run one engine's tests; also test-mysql, -mariadb, -sqlite, -sqlserver, -memory
$(ENGINES:%=test-%): test-%:
	@exec env $(RUN_SUITE) -engine $* engine

test-cluster: ## run the tests of database clusters in their short form: replication, failover, Galera, Patroni
	@exec env $(RUN_SUITE) cluster

soak: ## run crash and network tests at full size with random seeds (TIME=1h, SEED=n replays a run)
	@exec env $(RUN_SUITE) $(if $(TIME),-time $(TIME)) $(if $(SEED),-seed $(SEED)) soak

# $(value) because a regular expression can have a $.
flaky: ## run a suite N times in random order beside LOAD busy processes (N=10 SUITE=test LOAD=2 RUN=regexp)
	@exec env $(RUN_SUITE) -suite $(SUITE) -n $(or $(N),10) -load $(or $(LOAD),2) $(if $(value RUN),-run '$(value RUN)') flaky

flaky-touched: ## do the same for the tests that differ from a commit (BASE=HEAD~1 N=3)
	@exec env $(RUN_SUITE) -base $(or $(BASE),HEAD~1) -n $(or $(N),3) $(if $(TIME),-time $(TIME)) touched

cover: ## print the statement coverage of each package by a suite (SUITE=test)
	@exec env $(RUN_SUITE) -suite $(SUITE) cover

# Without cgo and paths, so that it shares what the tests build.
LINT = CGO_ENABLED=0 GOFLAGS="$$($(GO) env GOFLAGS) -trimpath" $(GO) tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint run ./...

lint: ## run gofmt, golangci-lint (with go vet) in each module, vale, actionlint and shellcheck
	@bad=$$(gofmt -l .); test -z "$$bad" || { echo "gofmt these: $$bad" >&2; exit 1; }
	@scripts/need.sh cc shellcheck
	shellcheck $$(git ls-files '*.sh' .ci/run)
	$(GO) tool -modfile=tools/go.mod actionlint
	git ls-files -z '*.md' '*.go' '*.py' '*.rb' '*.gemspec' '*.yaml' '*.yml' ':!.vale' | CGO_ENABLED=1 xargs -0 $(GO) tool -modfile=tools/vale/go.mod vale --output=line --minAlertLevel=error
	$(LINT)
	cd bench && $(LINT)
	cd deploy && $(LINT)
	cd e2e/traces && $(LINT)

audit: ## search for known vulnerabilities with govulncheck (uses vuln.go.dev; GitHub's workflow runs it)
	@GO="$(GO)" scripts/audit.sh $(ARGS)

fuzz: ## run every fuzz target, 30 s each (FUZZTIME=5m for longer)
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

##@ To measure it

bench: build ## compare the program with direct SQL (minutes a part; ARGS="-engine postgres -parts compare", see bench/README.md)
	@scripts/need.sh python3 venv ruby npm debs
	@cd bench && $(GO) build -o ../bin/bench .
	@exec ./bin/bench -bin bin/qsidecar $(ARGS)

RIVALS = @scripts/need.sh python3 venv ruby npm debs beanstalkd; cd bench && $(GO) build -o ../bin/bench . && cd .. && exec env -u QSIDECAR_TEST_MEMORY ./bin/bench -bin bin/qsidecar

rivals: build ## compare the program with other queues, and write bench/RESULTS.md (half an hour; some of it without the file: ARGS="-engine postgres -parts rivals -only River/32")
	$(RIVALS) -parts rivals,idle,backlog,snapshot -rounds 5 $(if $(ARGS),,-results bench/RESULTS.md) $(ARGS)

bench-smoke: build ## print the main ratios of make rivals (two minutes)
	$(RIVALS) -engine postgres -parts rivals -rounds 1 -only '*/32,*/1000,*/flow'
