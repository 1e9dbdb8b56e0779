#!/bin/bash
# Asks the Go vulnerability database (vuln.go.dev) whether a known vulnerability can be
# reached in any module here. Not in tools/: those read this repository's files alone.
# It fails where one is found, and where the database could not be asked.
#
#   scripts/audit.sh [OPTIONS OF govulncheck]      as -show verbose, -db file:///a/copy
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
govulncheck=$("${GO:-go}" tool -modfile=tools/go.mod -n govulncheck) || exit 1
bad=()
for module in . bench deploy; do
	echo "== govulncheck of ${module/#./qsidecar}"
	"$govulncheck" -C "$module" "$@" ./... || bad+=("${module/#./qsidecar}: exit status $?")
done
[ ${#bad[@]} -eq 0 ] || {
	echo "audit: NOT passed (3: vulnerable, else: not checked)" >&2
	printf '  %s\n' "${bad[@]}" >&2
	exit 1
}
