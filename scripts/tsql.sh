#!/bin/sh
# Checks the SQL Server backend's statements, because no server here can run them. It runs
# testdata/tsql/check.py in its own Python environment in the cache folder. It creates a missing
# environment.
#
#   scripts/tsql.sh            # the check
#   scripts/tsql.sh adopted FILE  # the check of statements for adopted tables, which a test wrote there
#   scripts/tsql.sh translate  # T-SQL in, steps for PostgreSQL out: testdata/tsql/translate.py
set -eu
cd "$(dirname "$0")/.."
tsql=backends/sqlserver/testdata/tsql
cache=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/qsidecar-test}
cache=${cache:-$PWD/.cache/servers}
mkdir -p "$cache"
home=$cache/tsql-$(cksum <$tsql/requirements.txt | cut -d' ' -f1)
# Only one process at a time creates it. An existing one is complete.
exec 9>"$cache/tsql.lock"
flock 9
if ! [ -e "$home/made" ]; then
	rm -rf "$home"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	{ python3 -m venv "$home" && "$home/bin/pip" install -q --disable-pip-version-check -r $tsql/requirements.txt; } >"$log" 2>&1 || {
		cat "$log" >&2
		echo "tsql.sh: no Python environment with sqlfluff and sqlglot could be made in $home; the words of pip are above" >&2
		exit 1
	}
	touch "$home/made"
fi
flock -u 9
exec 9>&-
export PYTHONDONTWRITEBYTECODE=1
if [ "${1:-}" = translate ]; then exec "$home/bin/python" $tsql/translate.py; fi
golden=backends/sqlserver/testdata/golden
if [ "${1:-}" = adopted ]; then exec "$home/bin/python" $tsql/check.py $golden backends/sqlserver/testdata/adopted.sql "$2"; fi
exec "$home/bin/python" $tsql/check.py $golden
