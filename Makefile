# The menu. `make test` is what continuous integration runs.
.PHONY: help build check test test-full lint gen fmt bench fuzz clean

# nextest runs tests in parallel when it is there; plain `cargo test` does the same work.
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)
TESTS := $(if $(NEXTEST),cargo nextest run --workspace --locked --no-fail-fast,cargo test --workspace --locked --no-fail-fast)
# Root file systems that tests share: built once, and kept.
export HOMESTAK_TEST_IMAGES ?= $(CURDIR)/target/test-images
# Time each fuzz target runs, in seconds.
FUZZ_SECONDS ?= 60

help: ## Show this menu
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## Build the release binaries
	cargo build --release --locked --package homestak --package homestak-agent

check: ## Type-check everything
	cargo check --workspace --all-targets --locked

test: ## Run every test; installs what tests need
	tests/prepare
	HOMESTAK_TEST_REQUIRE=1 $(TESTS)

test-full: ## Run every test with many more random cases, and every fault at every call
	HOMESTAK_TEST_FULL=1 tests/prepare
	tests/deny --install
	HOMESTAK_TEST_REQUIRE=1 HOMESTAK_TEST_FULL=1 PROPTEST_CASES=4096 $(TESTS)
	HOMESTAK_TEST_REQUIRE=1 HOMESTAK_TEST_IMAGE=debian-13 $(subst --workspace,--package homestak-agent --test node,$(TESTS))

lint: ## Formatting, clippy, tidy, generated files, dependencies, documentation
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo xtask tidy
	cargo xtask gen --check
	tests/deny
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

gen: ## Write the generated files: schemas and reference pages
	cargo xtask gen

fmt: ## Format the sources
	cargo fmt --all

bench: ## Measure against other tools; writes bench/RESULTS.md
	bench/run

fuzz: ## Run every fuzz target for FUZZ_SECONDS; needs nightly and cargo-fuzz
	fuzz/run $(FUZZ_SECONDS)

clean: ## Remove what was built
	cargo clean
