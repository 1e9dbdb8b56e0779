#!/bin/sh
# Builds the site of the docs in bin/site. Every warning is an error: a link to a missing page,
# heading or file, or a page that docs/site/index.md doesn't list.
#
#   scripts/docs.sh           # builds
#   scripts/docs.sh serve     # builds, and serves it at http://127.0.0.1:8000 (PORT)
#
# The first run installs Sphinx (tools/docs/requirements.txt) and the script that draws diagrams
# (tools/docs/mermaid.txt, from npm) into the cache folder. Later runs use no network.
set -eu
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:+$XDG_CACHE_HOME/qsidecar-test}
cache=${cache:-$PWD/.cache/servers}
mkdir -p "$cache" bin
home=$cache/docs-$(cat tools/docs/requirements.txt tools/docs/mermaid.txt | cksum | cut -d' ' -f1)
# Only one process at a time creates it. An existing one is complete.
exec 9>"$cache/docs.lock"
flock 9
if ! [ -e "$home/complete" ]; then
	rm -rf "$home"
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	{
		python3 -m venv "$home" &&
			"$home/bin/pip" install -q --disable-pip-version-check --require-virtualenv -r tools/docs/requirements.txt &&
			npm pack --silent --pack-destination "$home" "$(cut -d' ' -f1 tools/docs/mermaid.txt)" &&
			echo "$(cut -d' ' -f2 tools/docs/mermaid.txt)  $(echo "$home"/mermaid-*.tgz)" | sha256sum --check &&
			tar -xzf "$home"/mermaid-*.tgz -C "$home" package/dist/mermaid.min.js package/LICENSE
	} >"$log" 2>&1 || {
		cat "$log" >&2
		echo "docs.sh: Sphinx could not be installed in $home; the output of pip and npm is above" >&2
		exit 1
	}
	touch "$home/complete"
fi
flock -u 9
exec 9>&-

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/pages.sh "$work"
cp docs/site/index.md "$work"
mkdir "$work/site"
cp -R docs/site/conf.py docs/site/_static "$work/site"
cp "$home/package/dist/mermaid.min.js" "$work/site/_static"
rm -rf bin/site
QSIDECAR_REPOSITORY=$PWD PYTHONDONTWRITEBYTECODE=1 "$home/bin/sphinx-build" -q -W --keep-going -c "$work/site" -d "$work/doctrees" -b html "$work" bin/site
echo "docs.sh: bin/site/index.html has the site"
if [ "${1:-}" = serve ]; then
	exec python3 -m http.server --bind 127.0.0.1 --directory bin/site "${PORT:-8000}"
fi
