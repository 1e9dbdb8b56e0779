#!/bin/sh
# Runs a command, and tells at the end which database servers its tests ran on:
# what a test that passed prints shows nowhere.
#
#   scripts/ran.sh make unit
set -u
if [ -n "${QSIDECAR_TEST_SERVERS_RAN:-}" ]; then exec "$@"; fi # the caller will tell
QSIDECAR_TEST_SERVERS_RAN=$(mktemp) || exit 1
export QSIDECAR_TEST_SERVERS_RAN
trap 'rm -f "$QSIDECAR_TEST_SERVERS_RAN"' EXIT
"$@"
status=$?
sort "$QSIDECAR_TEST_SERVERS_RAN" | uniq -c
exit "$status"
