#!/bin/sh
# Runs every check, and tells at the end which database servers its tests ran on, and
# what ran as root (closing.sh): what a test that passed prints shows nowhere.
#
#   scripts/ran.sh make lint unit e2e
set -u
if [ -n "${QSIDECAR_TEST_SERVERS_RAN:-}" ]; then exec "$@"; fi # the caller will tell
QSIDECAR_TEST_SERVERS_RAN=$(mktemp) || exit 1
export QSIDECAR_TEST_SERVERS_RAN
trap 'rm -f "$QSIDECAR_TEST_SERVERS_RAN"' EXIT
"$@"
status=$?
if [ -n "${ARGS:-}" ]; then # a part of the tests, by choice
	sort "$QSIDECAR_TEST_SERVERS_RAN" | uniq -c
else
	"$(dirname "$0")/closing.sh" "$QSIDECAR_TEST_SERVERS_RAN" || status=$((status ? status : 1))
fi
exit "$status"
