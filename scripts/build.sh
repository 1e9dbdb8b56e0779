#!/bin/sh
# Builds the static program: the one place that says how. GOOS and GOARCH choose
# another machine's; the version is git's (a tag, or time and commit) unless
# QSIDECAR_VERSION says one, for a source without its repository.
#
#   scripts/build.sh [FILE]        FILE is absolute or below the repository; default bin/qsidecar
set -eu
cd "$(dirname "$0")/.."
CGO_ENABLED=0 exec "${GO:-go}" build -trimpath \
	-ldflags "-s -w${QSIDECAR_VERSION:+ -X main.version=$QSIDECAR_VERSION}" \
	-o "${1:-bin/qsidecar}" ./cmd/qsidecar
