#!/bin/sh
# Installs what the tests need and this machine lacks. If nothing is missing, it does
# nothing and uses no network.
#
#   scripts/need.sh cc python3 nc mount
#   scripts/need.sh --list cc python3    # only prints the missing packages
set -eu
list=
if [ "${1:-}" = --list ]; then list=1; shift; fi

# missing TOOL: whether this machine lacks it in the form that the tests use.
missing() {
	case $1 in
	cc) # the race detector is C: a compiler and the C library's headers
		! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | "${CC:-gcc}" -xc - -o /dev/null 2>/dev/null ;;
	nc) # -N -U: the OpenBSD one
		! nc -h 2>&1 | grep -q 'OpenBSD netcat' ;;
	python3) ! python3 -c 'import sqlite3, socket, json' 2>/dev/null ;;
	venv) ! python3 -c 'import ensurepip, venv' 2>/dev/null ;;
	ruby) ! ruby -rmsgpack -rpg -rmysql2 -rsqlite3 -e 'exit RUBY_VERSION >= "2.7"' 2>/dev/null || ! command -v gem >/dev/null ;;
	psql) ! psql --version >/dev/null 2>&1 ;;
	mandoc) ! command -v mandoc >/dev/null ;;
	socat) ! command -v socat >/dev/null ;;
	php) ! php -r 'exit(function_exists("pcntl_signal") ? 0 : 1);' 2>/dev/null ;;
	strace) ! command -v strace >/dev/null ;;
	npm) ! command -v npm >/dev/null || ! command -v node >/dev/null ;;
	mount) ! command -v mount >/dev/null || ! command -v unshare >/dev/null || ! command -v setpriv >/dev/null ;;
	buildah) ! command -v buildah >/dev/null && ! test -x /usr/bin/buildah ;;
	bwrap) ! command -v bwrap >/dev/null || ! command -v nsenter >/dev/null ;;
	machine) # a Debian that boots (internal/testserver/debian)
		! { command -v systemd-nspawn && command -v nsenter && test -x /usr/sbin/debootstrap; } >/dev/null ;;
	shellcheck) ! command -v shellcheck >/dev/null ;;
	tmux) ! command -v tmux >/dev/null ;;
	chromium) ! test -x /usr/lib/chromium/chromium-headless-shell || ! command -v setpriv >/dev/null ;;
	nginx) ! command -v nginx >/dev/null && ! test -x /usr/sbin/nginx ;;
	caddy) ! command -v caddy >/dev/null ;;
	beanstalkd) ! command -v beanstalkd >/dev/null ;;
	pgbouncer) ! command -v pgbouncer >/dev/null && ! test -x /usr/sbin/pgbouncer ;;
	debs) # not needed if the environment names running servers
		[ -z "${QSIDECAR_TEST_MYSQL:-}${QSIDECAR_TEST_MARIADB:-}${QSIDECAR_TEST_MARIADB_OLD:-}" ] &&
			! { command -v apt-get && command -v dpkg-deb && test -e /usr/share/keyrings/debian-archive-keyring.gpg; } >/dev/null ;;
	*) echo "need.sh: the tools are cc, nc, mandoc, python3, venv, ruby, psql, socat, php, strace, npm, mount, buildah, bwrap, machine, shellcheck, tmux, chromium, nginx, caddy, pgbouncer, beanstalkd and debs, not $1" >&2; exit 2 ;;
	esac
}

packages() {
	case $1 in
	cc) echo gcc libc6-dev ;;
	nc) echo netcat-openbsd ;;
	python3) echo python3 ;;
	venv) echo python3-venv ;; # for the grammars of T-SQL (scripts/tsql.sh)
	ruby) echo ruby ruby-msgpack ruby-pg ruby-mysql2 ruby-sqlite3 ;;
	psql) echo postgresql-client ;; # the pages below docs
	mandoc) echo mandoc ;;
	socat) echo socat ;;
	php) echo php-cli ;;
	strace) echo strace ;;
	npm) echo npm nodejs ;; # it fetches the test servers (internal/testserver)
	mount) echo mount util-linux ;;
	buildah) echo buildah ;;
	bwrap) echo bubblewrap util-linux ;;
	machine) echo systemd-container util-linux debootstrap debian-archive-keyring ;;
	shellcheck) echo shellcheck ;;
	tmux) echo tmux ;; # the terminal of qsidecar top
	chromium) echo chromium-headless-shell util-linux ;; # the tests of the web page (e2e/web)
	pgbouncer) echo pgbouncer ;;
	nginx) echo nginx-light ;;
	caddy) echo caddy ;;
	beanstalkd) echo beanstalkd ;; # make rivals
	debs) echo apt dpkg debian-archive-keyring ca-certificates ;; # they fetch MySQL and MariaDB
	esac
}

want=
for tool in "$@"; do
	if missing "$tool"; then want="$want $(packages "$tool")"; fi
done
[ -n "$want" ] || exit 0
if [ -n "$list" ]; then echo "$want"; exit 0; fi

if [ "$(id -u)" = 0 ]; then sudo=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo='sudo -n'
else sudo=no; fi
if [ "$sudo" = no ] || ! command -v apt-get >/dev/null; then
	echo "The tests need these Debian packages, or what they are called here, and cannot install them" >&2
	echo "(this is not Debian, or neither root nor password-less sudo):$want" >&2
	exit 1
fi

echo "installing$want" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
	# shellcheck disable=SC2086 # a list of names
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $want >"$log" 2>&1
}
# Try the existing package list first. If it is old or missing, fetch it.
install || { $sudo apt-get update -qq >"$log" 2>&1 && install; } || {
	cat "$log" >&2
	echo "apt-get could not install$want; its output is above" >&2
	exit 1
}
for tool in "$@"; do
	if missing "$tool"; then
		echo "installed$want, but $tool still does not work" >&2
		exit 1
	fi
done
