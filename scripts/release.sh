#!/bin/bash
# Builds the files of a release in dist/. For each system it builds an archive with the static
# program, its manual pages, shell completions, the pages with the files that they link to
# (config example, systemd units, …) and the licences of the linked modules. For Linux it also
# builds a .deb. It also builds the packages of the clients: for npm, a wheel, a source distribution
# and a gem. At the end it writes SHA256SUMS.
#
# The same commit (and the same tags), built by the same Go, gives the same bytes on any
# machine at any time. The version is git's. If the source is changed, it ends in "+dirty".
#
#   scripts/release.sh [SYSTEM/ARCH…]     default: linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
#   OUT=DIR scripts/release.sh            another folder than dist/; it is emptied first
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
out=$(realpath -m "${OUT:-dist}")
targets=("$@")
[ $# -gt 0 ] || targets=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64)

# The build must not depend on the locale (sorting), the zone, the modes of the checkout, and
# Go's settings.
export LC_ALL=C TZ=UTC GO="$go"
umask 022
export GOFLAGS="-mod=readonly -buildvcs=true" GOWORK=off GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0 GOENV=off
unset GOOS GOARCH QSIDECAR_VERSION

command -v npm >/dev/null || { echo "release.sh needs npm, which packs the Node client (scripts/need.sh npm)" >&2; exit 1; }
command -v gem >/dev/null || { echo "release.sh needs gem, which packs the Ruby client (scripts/need.sh ruby)" >&2; exit 1; }
tar --version 2>/dev/null | grep -q 'GNU tar' || { echo "release.sh needs GNU tar (macOS: gtar, first in PATH as tar)" >&2; exit 1; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) || { echo "release.sh needs the git repository: it says the version" >&2; exit 1; }
export SOURCE_DATE_EPOCH
[ -z "$(git status --porcelain)" ] || echo "release.sh: the source was changed after its commit: the version says +dirty" >&2

if [ -n "$(ls -A "$out" 2>/dev/null)" ] && [ ! -e "$out/SHA256SUMS" ]; then
	echo "release.sh: $out has files that are no release's: it would be emptied" >&2
	exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# These files are the same for all systems. The program itself prints them.
host=$("$go" env GOHOSTOS)/$("$go" env GOHOSTARCH)
scripts/build.sh "$work/qsidecar"
version=$("$work/qsidecar" version --json | sed -E 's/.*"version":"([^"]*)".*/\1/')
if [ "$version" = devel ]; then
	echo "release.sh: Go found no version here (it does not look into a linked git worktree): release from a clone" >&2
	exit 1
fi
common=$work/common
mkdir -p "$common/completions"
for shell in bash zsh fish; do
	"$work/qsidecar" completion "$shell" >"$common/completions/qsidecar.$shell"
done
"$work/qsidecar" man "$common/man"
scripts/pages.sh "$common"
scripts/licenses.sh >"$common/LICENSES.txt"

# archive NAME FILE: an archive of the folder NAME, without anything that changes between builds.
archive() {
	tar -C "$work" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
		--mode='u=rwX,go=rX' -cf - "$1" | gzip -n >"$out/$2"
}

for target in "${targets[@]}"; do
	name=qsidecar-$version-${target/\//-}
	cp -R "$common" "$work/$name"
	if [ "$target" = "$host" ]; then
		cp "$work/qsidecar" "$work/$name/"
	else
		GOOS=${target%/*} GOARCH=${target#*/} scripts/build.sh "$work/$name/qsidecar"
	fi
	if [ "${target%/*}" = linux ]; then
		scripts/deb.sh "$work/$name" "${target#*/}" "$version" "$out"
	fi
	archive "$name" "$name.tar.gz"
done

# The Node client, with the files that npm packs. Its version is its own.
cp -R clients/node "$work/node"
packed=$(cd "$work/node" && npm pack --silent --ignore-scripts --pack-destination "$work")
tar -C "$work" -xzf "$work/$packed" # the folder "package"
archive package "qsidecar-node-${packed#qsidecar-}"

# The Ruby client. A gem's date is SOURCE_DATE_EPOCH.
cp -R clients/ruby "$work/ruby"
chmod -R u=rwX,go=rX "$work/ruby"
gemspec=$work/ruby/qsidecar.gemspec
gem=qsidecar-$(cd "$work/ruby" && ruby -e 'puts Gem::Specification.load(ARGV[0]).version' "$gemspec").gem
(cd "$work/ruby" && gem build --silent "$gemspec" --output "$out/$gem" >/dev/null)

# The Python client: a wheel, and a source distribution without anything that changes between builds.
cp -R clients/python "$work/python"
chmod -R u=rwX,go=rX "$work/python"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check setuptools==80.9.0
for build in wheel sdist; do
	(cd "$work/python" && "$work/venv/bin/python" -W ignore -c "from setuptools import build_meta; build_meta.build_$build('$work')" >"$work/$build.log" 2>&1) || { cat "$work/$build.log" >&2; exit 1; }
done
cp "$work"/*.whl "$out/"
sdist=$(cd "$work" && echo qsidecar-*.tar.gz)
tar -C "$work" -xzf "$work/$sdist"
archive "${sdist%.tar.gz}" "$sdist"

cd "$out"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
