# shellcheck shell=sh
# A library for POSIX shells and bash that uses the qsidecar program. Source it.
#
#	. /usr/local/lib/qsidecar.sh
#
# It needs `qsidecar` (set QSIDECAR_BIN for another path) and a mounted /proc. README.md has an
# example of each function.

QSIDECAR_BIN=${QSIDECAR_BIN:-qsidecar}

# The script that sources this file, its working directory and its options.
_qsidecar_directory=$PWD
case $0 in
/*) _qsidecar_script=$0 ;;
*/*) _qsidecar_script=$PWD/$0 ;;
*) if [ -f "$0" ]; then _qsidecar_script=$PWD/$0; else _qsidecar_script=$(command -v -- "$0") || :; fi ;;
esac
_qsidecar_options=
for _qsidecar_option in e f u x; do
	case $- in *"$_qsidecar_option"*) _qsidecar_options=$_qsidecar_options$_qsidecar_option ;; esac
done

# qsidecar_socket prints the path of the sidecar's socket, for nc and socat. It needs no qsidecar
# program. It looks where that program does. Its status is 5 if no path is a socket that this
# user can connect to, and 2 if QSIDECAR_SOCKET is a URL, or a host and a port.
qsidecar_socket() {
	_qsidecar_paths=$(_qsidecar_sockets)
	case $_qsidecar_paths in
	unix:* | *://* | [!/]*:[0-9]*)
		echo "qsidecar_socket: QSIDECAR_SOCKET: $_qsidecar_paths is not a path, such as /run/qsidecar/qsidecar.sock" >&2
		return 2
		;;
	esac
	while IFS= read -r _qsidecar_path; do
		if [ -S "$_qsidecar_path" ] && [ -w "$_qsidecar_path" ]; then
			printf '%s\n' "$_qsidecar_path"
			return 0
		fi
	done <<-END
		$_qsidecar_paths
	END
	echo "qsidecar_socket: no sidecar's socket that this user can connect to (set QSIDECAR_SOCKET): $_qsidecar_paths" >&2
	return 5
}

# _qsidecar_sockets prints the possible paths of the socket, in order.
_qsidecar_sockets() {
	if [ -n "${QSIDECAR_SOCKET-}" ]; then
		printf '%s\n' "$QSIDECAR_SOCKET"
		return
	fi
	# Root skips a directory that another user owns: that user could serve a socket of its own there.
	if [ -n "${XDG_RUNTIME_DIR-}" ] && { [ "$(id -u)" != 0 ] ||
		[ -z "$(find -H "$XDG_RUNTIME_DIR" "$XDG_RUNTIME_DIR/qsidecar" -prune ! -user 0 2>/dev/null)" ]; }; then
		printf '%s\n' "$XDG_RUNTIME_DIR/qsidecar/qsidecar.sock"
	fi
	_qsidecar_state=${XDG_STATE_HOME:-${HOME:+$HOME/.local/state}}
	if [ -n "$_qsidecar_state" ] && [ "$(id -u)" != 0 ] && [ -d "$_qsidecar_state/qsidecar" ]; then
		printf '%s\n' "$_qsidecar_state/qsidecar/qsidecar.sock"
	fi
	printf '%s\n' /run/qsidecar/qsidecar.sock
}

# qsidecar_enqueue QUEUE [PAYLOAD|-] [FLAG…] stores a job and prints its id.
qsidecar_enqueue() { "$QSIDECAR_BIN" enqueue "$@"; }

# qsidecar_work QUEUE… [FLAG…] -- FUNCTION [ARG…] calls FUNCTION for each job. It
# accepts the flags of `qsidecar work`, replaces the shell by that program, and does not return.
#
# FUNCTION has the payload on stdin and the variables QSIDECAR_JOB, … (qsidecar work
# --help). Its status settles the job: 0 done, 75 snooze, any other failed, with the
# end of its stderr. It runs in a new shell, which reads the script from its top down to
# qsidecar_work, without the script's arguments. That part of the script runs for each job.
qsidecar_work() {
	if [ "${_QSIDECAR_WORKS-}" = "$_qsidecar_script" ]; then # in the shell of a job
		unset _QSIDECAR_WORKS # the function can start this script again
		while [ "$1" != -- ]; do shift; done
		shift
		"$@"
		exit
	fi
	_qsidecar_shell=$(readlink "/proc/$$/exe")
	if [ ! -f "$_qsidecar_script" ] || [ "$(readlink -f "$_qsidecar_script")" = "$_qsidecar_shell" ]; then # sh -c, or typed
		echo "qsidecar_work: a function runs in shells that read its script, and $0 is not the file of one" >&2
		exit 2
	fi
	# Keep the arguments before --. The script itself passes the others again.
	_qsidecar_left=$# _qsidecar_after='' _qsidecar_function=''
	while [ "$_qsidecar_left" -gt 0 ]; do
		case $_qsidecar_after:$1 in
		:--) _qsidecar_after=yes ;;
		yes:*) _qsidecar_function=${_qsidecar_function:-$1} ;;
		*) set -- "$@" "$1" ;;
		esac
		shift
		_qsidecar_left=$((_qsidecar_left - 1))
	done
	if ! command -v -- "$_qsidecar_function" >/dev/null 2>&1; then
		echo "qsidecar_work: it takes queues, then -- and a function that stands above it, as in: qsidecar_work mail -- send" >&2
		exit 2
	fi
	cd "$_qsidecar_directory" || exit
	_QSIDECAR_WORKS=$_qsidecar_script
	export _QSIDECAR_WORKS QSIDECAR_BIN
	set -- "$@" -- "$_qsidecar_shell"
	case $_qsidecar_shell in */busybox) set -- "$@" sh ;; esac
	exec "$QSIDECAR_BIN" work "$@" ${_qsidecar_options:+"-$_qsidecar_options"} "$_qsidecar_script"
}

# qsidecar_claim QUEUE… [FLAG…] claims a job, for scripts without a loop. The script holds the job
# for --lease (5m). Its lease, payload and so on are in QSIDECAR_LEASE,
# QSIDECAR_PAYLOAD, … Its status is 3 if no job is ready.
qsidecar_claim() {
	_qsidecar_job=$("$QSIDECAR_BIN" claim --env "$@") || return
	eval "$_qsidecar_job"
}

# qsidecar_payload prints the payload of the claimed job, including bytes that a variable
# can't contain.
qsidecar_payload() {
	if [ -n "$QSIDECAR_PAYLOAD_B64" ]; then
		printf %s "$QSIDECAR_PAYLOAD_B64" | base64 -d
	else
		printf %s "$QSIDECAR_PAYLOAD"
	fi
}

# qsidecar_ack, qsidecar_nack and qsidecar_extend [FLAG…] settle or renew the claimed
# job. Their status is 4 if its lease was lost.
qsidecar_ack() { "$QSIDECAR_BIN" ack "$QSIDECAR_LEASE" "$@" >/dev/null; }
qsidecar_nack() { "$QSIDECAR_BIN" nack "$QSIDECAR_LEASE" "$@" >/dev/null; }
# qsidecar_progress [DONE [TOTAL]] [--data TEXT] reports how far the job is, also in a function of
# qsidecar_work.
qsidecar_progress() { "$QSIDECAR_BIN" progress "$@" >/dev/null; }
qsidecar_extend() { "$QSIDECAR_BIN" extend "$QSIDECAR_LEASE" "$@" >/dev/null; }
