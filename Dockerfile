# fabrique in a small image that runs as nobody in particular. Two targets:
#
#   source     builds the binary from this repository, on BUILD_BASE; the context is the repository's root
#   prebuilt   takes a binary that was built elsewhere, against a C library no newer than RUNTIME_BASE's; the context is
#              the folder that it is in
#
#   buildctl build --frontend dockerfile.v0 --opt target=prebuilt --local dockerfile=. --local context=target/release \
#     --opt build-arg:RUNTIME_BASE=registry:80/base/debian@sha256:… --output type=image,name=registry:80/fabrique,push=true
#
# Debian and not `scratch`: fabrique shells out to git, which needs certificates and a C library; so the binary is
# linked to that same C library rather than carrying another. Every base is an argument, for registries behind an air
# gap, and there is no syntax line, so that nothing else is pulled:
#
#   --build-arg BUILD_BASE=registry:80/base/rust:1.95-slim-bookworm
#   --build-arg RUNTIME_BASE=registry:80/base/debian-git:bookworm
#
# A RUNTIME_BASE that has git and certificates needs no package mirror. Crates come from crates.io, or from wherever a
# `.cargo/config.toml` beside the context's Cargo.toml says; CARGO_ARGS=--offline insists. tests/cluster/src/source.rs
# builds it so: on a base of its own, with crates of `cargo vendor`.

ARG BUILD_BASE=docker.io/library/rust:1.95-slim-bookworm
ARG RUNTIME_BASE=docker.io/library/debian:bookworm-slim

FROM ${BUILD_BASE} AS build
ARG CARGO_ARGS=""
# The image's own toolchain: rust-toolchain.toml also asks for rustfmt and clippy, which a build does not need.
ARG RUSTUP_TOOLCHAIN=1.95.0
ENV RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN} CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
WORKDIR /src
# One by one: a git context knows no .dockerignore, and a change elsewhere need not build anew.
COPY Cargo.toml Cargo.lock ./
# Where crates come from, if that is said. A pattern may match nothing, a name may not.
COPY .carg[o] .cargo/
COPY proto proto
COPY services services
COPY bench bench
COPY tests tests
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --locked --release ${CARGO_ARGS} --package fabrique --bin fabrique \
    && install -D -m 0755 target/release/fabrique /out/fabrique

FROM ${RUNTIME_BASE} AS runtime
# `init` reaps whatever git leaves behind when it is stopped. A base with git but without tini is taken as it is, where
# nothing can be installed; then pods reap by shareProcessNamespace, as those of k8s/ do, and tini is no longer first.
ENV TINI_SUBREAPER=1
RUN if ! command -v git >/dev/null || [ ! -e /etc/ssl/certs/ca-certificates.crt ]; then \
        apt-get update -qq \
        && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends git ca-certificates tini \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && ln -s "$(command -v tini || command -v env)" /usr/local/bin/init \
    && install -d -o 65532 -g 65532 -m 0750 /var/lib/fabrique
LABEL org.opencontainers.image.title="fabrique" \
      org.opencontainers.image.description="From a push on Gitea to a digest that Argo CD deploys" \
      org.opencontainers.image.licenses="Apache-2.0"
# By number, so that `runAsNonRoot` can see it; git needs no entry in /etc/passwd.
USER 65532:65532
WORKDIR /var/lib/fabrique
# Clones: a cache that may be lost.
VOLUME /var/lib/fabrique
# Webhooks, /livez, /readyz, /metrics.
EXPOSE 8080
ENTRYPOINT ["init", "--", "fabrique"]
CMD ["--help"]

FROM runtime AS prebuilt
ARG BINARY=fabrique
COPY --chmod=0755 ${BINARY} /usr/local/bin/fabrique

# Last, so that it is what no target means.
FROM runtime AS source
COPY --from=build /out/fabrique /usr/local/bin/fabrique
