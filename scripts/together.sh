#!/bin/bash
# Runs make's targets at the same time: most of them wait, for a disk or for time to
# pass, and leave a processor to the others; the first named goes before the second, and
# so on, so name first what measures times. What each says is shown whole when it has
# ended; and, where this script is told to end, what there is. Fails where one of them
# fails, after all have ended.
#
#   scripts/together.sh e2e modules unit lint
set -u
said=$(mktemp -d) || exit 1
declare -A target=()

show() { # PID, how it ended
	echo "== ${target[$1]}: $2 after $SECONDS s"
	cat "$said/${target[$1]}"
	unset "target[$1]"
}

# shellcheck disable=SC2317 # the trap calls it
tell() {
	trap '' TERM INT HUP
	for pid in "${!target[@]}"; do
		kill "$pid" 2>/dev/null
		show "$pid" "told to end"
	done
	exit 143
}

trap 'rm -rf "$said"' EXIT
trap tell TERM INT HUP

nice=0
for name in "$@"; do
	nice -n "$nice" "${MAKE:-make}" --no-print-directory "$name" >"$said/$name" 2>&1 &
	target[$!]=$name
	nice=$((nice + 7))
done
echo "== at the same time, each shown when it has ended: $*"

status=0
while [ "${#target[@]}" -gt 0 ]; do
	wait -n -p pid "${!target[@]}"
	code=$?
	[ "$code" = 0 ] || status=1
	show "$pid" "exit status $code"
done
exit "$status"
