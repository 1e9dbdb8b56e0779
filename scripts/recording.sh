#!/bin/bash
# Records the session at the top of the README as an animated picture: a worker is killed, and
# another one gets its job.
#
#   scripts/recording.sh [SVG]       default: docs/recording.svg; needs python3, npm and bin/qsidecar
set -euo pipefail
# type_line COMMAND shows a prompt and the command as if it were typed.
type_line() {
	printf '\033[1;32m$\033[0m '
	for ((i = 0; i < ${#1}; i++)); do
		printf '%s' "${1:i:1}"
		sleep 0.03
	done
	printf '\n'
}

# demo is the session. It runs in a terminal of its own.
demo() {
	step() {
		type_line "$1"
		eval "$1"
		disown -a # no message about the killed worker
		sleep "${2:-1}"
	}
	step "cat send.sh"
	step "qsidecar enqueue mail '{\"to\": \"ada@example.com\"}'"
	step 'qsidecar work mail -- ./send.sh &' 2
	step 'kill -9 $!          # the worker dies in the middle of its job' 1
	step 'qsidecar work mail --drain -- ./send.sh'
	step 'qsidecar stats' 3
}

if [ "${1:-}" = demo ]; then
	demo 2>&1
	exit
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
svg=$(realpath -m "${1:-docs/recording.svg}")
program=$(realpath bin/qsidecar)
work=$(mktemp -d)
sidecar=
trap '[ -z "$sidecar" ] || kill "$sidecar"; rm -rf "$work"' EXIT
mkdir "$work/home" "$work/bin"
ln -s "$program" "$work/bin/qsidecar"
cat >"$work/home/send.sh" <<'END'
#!/bin/sh
echo "attempt $QSIDECAR_ATTEMPT: sending $(cat)"
if [ "$QSIDECAR_ATTEMPT" = 1 ]; then sleep 60; fi
echo "sent"
END
chmod +x "$work/home/send.sh"
export HOME="$work/home" XDG_STATE_HOME="$work/state" XDG_RUNTIME_DIR="$work" PATH="$work/bin:$PATH" LANG=C.UTF-8
qsidecar serve 2>"$work/log" >"$work/out" &
sidecar=$!
until qsidecar ping >"$work/ping" 2>&1; do sleep 0.1; done

# Records the session as an asciicast: https://docs.asciinema.org/manual/asciicast/v2/.
demo=$PWD/scripts/recording.sh
(cd "$work/home" && python3 - "$work/session.cast" "$demo" <<'END'
import json, os, pty, sys, time

file, demo = sys.argv[1:]
os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="18")
with open(file, "w", encoding="utf-8") as cast:
    print(json.dumps({"version": 2, "width": 80, "height": 18}), file=cast)
    start = time.monotonic()

    def read(fd):
        data = os.read(fd, 1024)
        print(json.dumps([round(time.monotonic() - start, 3), "o", data.decode(errors="replace")]), file=cast)
        return data

    sys.exit(os.waitstatus_to_exitcode(pty.spawn([demo, "demo"], read)))
END
)
(cd "$work" && npm exec --yes --package svg-term-cli@2.1.1 -- svg-term --in session.cast --out "$svg" --window --no-cursor --padding 12)
