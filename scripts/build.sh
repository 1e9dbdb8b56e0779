#!/bin/sh
# Builds the static program. All other builds use this script. GOOS and GOARCH select another
# machine. The version is git's (a tag, or time and commit). For a source without its
# repository set QSIDECAR_VERSION.
#
#   scripts/build.sh [FILE]        FILE is absolute or below the repository; default bin/qsidecar
set -eu
cd "$(dirname "$0")/.."
CGO_ENABLED=0 exec "${GO:-go}" build -trimpath \
	-ldflags "-s -w${QSIDECAR_VERSION:+ -X main.version=$QSIDECAR_VERSION}" \
	-o "${1:-bin/qsidecar}" ./cmd/qsidecar
