# shellcheck shell=sh
# A library for POSIX shells and bash that uses the qsidecar program. Source it.
#
#	. /usr/local/lib/qsidecar.sh
#
# It needs `qsidecar` (QSIDECAR_BIN: another path of it) and a mounted /proc. README.md in
# this folder has an example of each function.

QSIDECAR_BIN=${QSIDECAR_BIN:-qsidecar}

# The script that sources this, its working directory at the start, and its options.
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

# qsidecar_enqueue QUEUE [PAYLOAD|-] [FLAG…] stores a job and prints its id.
qsidecar_enqueue() { "$QSIDECAR_BIN" enqueue "$@"; }

# qsidecar_work QUEUE… [FLAG…] -- FUNCTION [ARG…] calls FUNCTION for each job. It
# takes the flags of `qsidecar work`, becomes that program, and does not return.
#
# FUNCTION has the payload on stdin and the variables QSIDECAR_JOB, … (qsidecar work
# --help). Its status settles the job: 0 done, 75 not now, any other failed, with the
# end of its stderr. It runs in its own shell, which reads the script from the top down to
# qsidecar_work, without the script's arguments. So the lines above run for each job.
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
	# Keep the arguments before --, and drop the others: the script itself passes them again.
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

# qsidecar_claim QUEUE… [FLAG…] claims a job, for scripts without a loop. The lease lasts for
# --lease (5m). QSIDECAR_LEASE, QSIDECAR_PAYLOAD, … have the lease, the payload and so on. Its
# status is 3 if no job is ready.
qsidecar_claim() {
	_qsidecar_job=$("$QSIDECAR_BIN" claim --env "$@") || return
	eval "$_qsidecar_job"
}

# qsidecar_payload prints the payload of the claimed job: all of its bytes, also those that a
# variable can't hold.
qsidecar_payload() {
	if [ -n "$QSIDECAR_PAYLOAD_B64" ]; then
		printf %s "$QSIDECAR_PAYLOAD_B64" | base64 -d
	else
		printf %s "$QSIDECAR_PAYLOAD"
	fi
}

# qsidecar_ack, qsidecar_nack and qsidecar_extend [FLAG…] settle the claimed job or renew its
# lease. Their status is 4 if the lease is lost.
qsidecar_ack() { "$QSIDECAR_BIN" ack "$QSIDECAR_LEASE" "$@" >/dev/null; }
qsidecar_nack() { "$QSIDECAR_BIN" nack "$QSIDECAR_LEASE" "$@" >/dev/null; }
qsidecar_extend() { "$QSIDECAR_BIN" extend "$QSIDECAR_LEASE" "$@" >/dev/null; }
