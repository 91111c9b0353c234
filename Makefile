# The commands of this repository. `make demo` and `make test` set up all they need; the rest is for developers.
SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help

export AWS_EC2_METADATA_DISABLED := true
export CARGO_TERM_COLOR ?= auto
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
BIN := $(TARGET_DIR)/x86_64-unknown-linux-gnu/release
CASES ?=
NODES ?= 3

.PHONY: help
help: ## Lists the commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -ts $$'\t'

.PHONY: setup
setup: ## Installs what building and testing need (Debian packages; root or sudo).
	@scripts/setup

.PHONY: build
build: setup ## Builds the programs into target/.
	cargo build --release --locked --bins

.PHONY: demo
demo: build ## Runs the main job on real files: S3 server, three workers, a mount, compared byte for byte.
	@$(BIN)/demo

.PHONY: test
test: setup lint unit ## Runs every check and every test; those on Kubernetes where root, Go and the kernel allow.

.PHONY: unit
unit: build
	@scripts/setup $$([ "$$(id -u)" != 0 ] || echo cluster)
	@scripts/run-tests

.PHONY: cluster-up
cluster-up: ## Brings up a Kubernetes on this machine, with our images: make cluster-up, or make cluster-up NODES=1.
	@scripts/setup cluster
	cargo build --release --locked --bins
	@scripts/cluster images $(BIN)
	@scripts/cluster up $(NODES)

.PHONY: cluster-down
cluster-down: ## Ends and removes that Kubernetes, also after a crash.
	@scripts/cluster down

.PHONY: lint
lint: ## Checks format, lints, docs, the CRD file, the chart, and dependencies where cargo-deny is installed.
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --release --locked --workspace --no-deps --quiet
	@cargo build --release --locked --quiet --bin millrace
	@diff -u crds/dataset.yaml <($(BIN)/millrace crd) || { echo 'crds/dataset.yaml is stale: run make crds' >&2; exit 1; }
	@diff -u docs/reference.md <($(BIN)/millrace crd --docs) || { echo 'docs/reference.md is stale: run make crds' >&2; exit 1; }
	@scripts/check-chart
	@scripts/check-docs
	@scripts/check-sizes
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check licenses bans sources; \
	  else echo 'lint: cargo-deny is not installed, its checks are skipped'; fi

.PHONY: crds
crds: ## Prints the CRDs from the types into crds/, the chart and the docs.
	cargo build --release --quiet --bin millrace
	$(BIN)/millrace crd > crds/dataset.yaml
	cp crds/dataset.yaml charts/millrace/files/dataset.yaml
	$(BIN)/millrace crd --docs > docs/reference.md

.PHONY: bench
bench: build ## Measures Millrace against baselines: make bench, or make bench CASES="a b".
	@scripts/setup bench
	@$(BIN)/bench $(CASES)

.PHONY: bench-rivals
bench-rivals: build ## Measures Millrace, ext4, s3fs, rclone and a plain download in one run, and writes docs/benchmarks.md.
	@scripts/setup bench
	@$(BIN)/bench rivals
