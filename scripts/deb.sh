#!/bin/bash
# Builds the Debian package of a release's folder (the one that scripts/release.sh archives)
# in OUT. The same folder and SOURCE_DATE_EPOCH give the same bytes.
#
#   scripts/deb.sh FOLDER ARCH VERSION OUT        ARCH: amd64, arm64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
from=$(realpath "$1") out=$(realpath "$4")
# Debian sorts 1.3.0~rc.1 before 1.3.0, so 1.3.0-rc.1 becomes 1.3.0~rc.1. A further hyphen
# would start the revision of a package, which a package by the program's authors doesn't have.
version=${3/-/\~}
export DEB_ARCH=$2 DEB_VERSION=${version//-/.} SOURCE_DATE_EPOCH
nfpm=$("${GO:-go}" tool -modfile=tools/go.mod -n nfpm)

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cp -R deploy/debian/. deploy/systemd "$from/qsidecar" "$from/completions" "$from/man" "$stage"
gzip -9n "$stage"/man/*.1
doc=$stage/doc
mkdir -p "$doc"
scripts/pages.sh "$doc"
gzip -9n <"$from/LICENSES.txt" >"$doc/LICENSES.txt.gz"
{
	printf 'qsidecar, https://github.com/qsidecar/qsidecar\nCopyright %s the authors of qsidecar\n\n' "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)"
	cat LICENSE
	printf '\nThe licences of the libraries that are linked into /usr/bin/qsidecar are in\n/usr/share/doc/qsidecar/LICENSES.txt.gz\n'
} >"$doc/copyright"
{
	echo "qsidecar ($DEB_VERSION) unstable; urgency=medium"
	printf '\n  * https://github.com/qsidecar/qsidecar/releases has what changed.\n\n'
	echo " -- qsidecar maintainers <qsidecar@users.noreply.github.com>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.gz"
chmod -R u=rwX,go=rX "$stage"
cd "$stage"
"$nfpm" package --config nfpm.yaml --packager deb --target "$out" >/dev/null
