#!/bin/sh
# The closing lines of a whole run: which servers its tests ran on, and what of them
# ran as root. Fails where a line of root-tests.txt is not among the latter.
#
#   scripts/closing.sh FILE     (the file that QSIDECAR_TEST_SERVERS_RAN named)
set -u
sort "$1" | uniq -c
status=0
while read -r what; do
	grep -qF "ran as root: $what, " "$1" && continue
	echo "DID NOT RUN AS ROOT: $what (scripts/root-tests.txt wants it; see internal/testserver/root.go)" >&2
	status=1
done <"$(dirname "$0")/root-tests.txt"
exit "$status"
