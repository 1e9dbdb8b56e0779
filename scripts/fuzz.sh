#!/bin/sh
# Runs every fuzz target of the module for the given time each: go's -fuzz takes
# one target of one package at a time.
set -eu
cd "$(dirname "$0")/.."
for_each=${1:-30s}
ran=0
for pkg in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "== $pkg $target, $for_each"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$for_each" -fuzzminimizetime 20x "$pkg"
		ran=$((ran + 1))
	done
done
[ "$ran" -gt 0 ] || { echo "no fuzz target was found" >&2; exit 1; }
echo "$ran fuzz targets ran"
