#!/bin/bash
# Checks with the Go vulnerability database (vuln.go.dev) whether the code of any module here
# reaches a known vulnerability. It skips tools/, which reads only this repository's files. It
# fails if it finds one, and if the database isn't reachable.
#
#   scripts/audit.sh [OPTIONS OF govulncheck]      for example -show verbose, -db file:///a/copy
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
govulncheck=$("${GO:-go}" tool -modfile=tools/go.mod -n govulncheck) || exit 1
bad=()
for module in . bench deploy e2e/traces; do
	echo "== govulncheck of ${module/#./qsidecar}"
	"$govulncheck" -C "$module" "$@" ./... || bad+=("${module/#./qsidecar}: exit status $?")
done
[ ${#bad[@]} -eq 0 ] || {
	echo "audit: NOT passed (3: vulnerable, else: not checked)" >&2
	printf '  %s\n' "${bad[@]}" >&2
	exit 1
}
