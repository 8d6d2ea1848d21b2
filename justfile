# Plain `./just` lists the recipes. CI runs the same ones, through .ci/run.

set shell := ["bash", "-euo", "pipefail", "-c"]

[private]
default:
    @{{ just_executable() }} --list --unsorted

# The profile that the tests use too: quick to compile, and fast enough to look at.
demo_profile := if env("FABRIQUE_DEMO_RELEASE", "") == "" { "dev" } else { "release" }
demo_folder := env("CARGO_TARGET_DIR", "target") / if demo_profile == "dev" { "debug" } else { "release" }

# Watch a push become a digest on cluster/apps; stays up on a terminal, but for --once (15 minutes the first time)
demo *ARGS:
    @test -x {{ demo_folder }}/demo || echo "demo: compiling fabrique, about 4 minutes on two cores the first time" >&2
    @cargo build --locked --profile {{ demo_profile }} --package fabrique --package fabrique-demo
    @exec {{ demo_folder }}/demo {{ ARGS }}

# Build the test bed's peers: about 10 minutes the first time, a moment after that
bed:
    cargo run --locked --quiet --package fabrique-bed --bin bed -- build

[private]
cluster-bed:
    cargo run --locked --quiet --package fabrique-bed --bin bed -- build peers cluster

# Bring up a Kubernetes cluster with fabrique in it, which stays and which tests then share; half an hour the first time, a minute after that
cluster:
    cargo run --locked --quiet --package fabrique-bed --bin bed -- cluster up
    cargo build --locked --quiet --package fabrique
    cargo run --locked --quiet --package fabrique-scenarios --bin install

# End that cluster, and leave nothing of it
cluster-down:
    cargo run --locked --quiet --package fabrique-bed --bin bed -- cluster down

# Ask that cluster, as its administrator
kubectl *ARGS:
    @cargo run --locked --quiet --package fabrique-bed --bin bed -- kubectl {{ ARGS }}

# Run every test, against real servers and one real cluster, to the end even if one fails; ARGS go to `cargo test` instead of --workspace
test *ARGS: cluster-bed
    #!/usr/bin/env bash
    set -uo pipefail
    if [ -n "{{ ARGS }}" ]; then exec cargo test --locked --no-fail-fast {{ ARGS }}; fi
    # Most tests wait for somebody else half of the time.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}
    # First what starts and ends clusters itself: there is one at a time.
    cargo test --locked --workspace --test lifetime
    alone=$?
    cargo run --locked --quiet --package fabrique-bed --bin bed -- cluster during cargo test --locked --workspace --no-fail-fast
    exit $((alone > 0 ? alone : $?))

# Run the tests that need the cluster, and no others; what `cluster` installed makes way for theirs
test-cluster *ARGS: cluster-bed
    cargo build --locked --package fabrique
    cargo test --locked --package fabrique-bed --test cluster --package fabrique-cluster-tests --package fabrique-kubernetes --test live --package fabrique-scenarios --test pods --test scenarios -- {{ ARGS }}

# Play every gate of scenario 34 and every fault of a build in a pod, the long ones too
scenarios: cluster-bed
    cargo build --locked --package fabrique
    FABRIQUE_LONG_GATES=1 cargo test --locked --package fabrique-scenarios --test scenarios -- --include-ignored
    cargo test --locked --package fabrique-scenarios --test pods --package fabrique-kubernetes --test live -- --include-ignored

# Run every journey and fault, the long ones too, TIMES times in a row
soak TIMES="3": bed
    for round in $(seq {{ TIMES }}); do echo "soak: round $round of {{ TIMES }}"; cargo test --locked --package fabrique --test journeys -- --include-ignored; done

# Measure fabrique beside bare tools and a script, release build, some minutes, or with `cluster` first on the cluster; ARGS: --rounds N, --only FIGURE, --json FILE
bench *ARGS:
    @cargo run --locked --quiet --package fabrique-bed --bin bed -- build{{ if ARGS =~ "^cluster" { " peers cluster" } else { "" } }}
    cargo build --release --locked --quiet --package fabrique --package {{ if ARGS =~ "^cluster" { "fabrique-bench-cluster" } else { "fabrique-bench" } }}
    cargo run --release --locked --quiet --package {{ if ARGS =~ "^cluster" { "fabrique-bench-cluster -- " + replace_regex(ARGS, "^cluster", "") } else { "fabrique-bench -- " + ARGS } }}

# Check formatting, clippy and, where cargo-deny is installed, the dependencies
lint:
    cargo fmt --all --check
    cargo clippy --locked --workspace --all-targets -- -D warnings
    @if command -v cargo-deny >/dev/null; then {{ just_executable() }} deny; else echo "lint: cargo-deny is not installed, dependencies were not checked"; fi

# Check the dependencies' licences, sources, bans and, where the database can be had, advisories
deny:
    cargo deny --workspace check --hide-inclusion-graph bans licenses sources
    @if timeout 120 cargo deny fetch db >/dev/null 2>&1; then cargo deny --workspace check advisories; else echo "deny: ADVISORIES WERE NOT CHECKED: the RustSec database cannot be reached from this machine"; fi

# Format the code
format:
    cargo fmt --all
