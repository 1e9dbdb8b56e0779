#!/bin/bash
# Makes the Debian package of a release's folder (what scripts/release.sh archives), into OUT:
# the same folder and SOURCE_DATE_EPOCH give the same bytes.
#
#   scripts/deb.sh FOLDER ARCH VERSION OUT        ARCH: amd64, arm64
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
from=$(realpath "$1") out=$(realpath "$4")
# As Debian sorts it: 1.3.0-rc.1 is 1.3.0~rc.1, which comes before 1.3.0. A further hyphen
# would begin the revision of a package that is not made by its program's authors.
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
	if [ -e LICENSE ]; then cat LICENSE; else echo "The source has no LICENSE file: none is granted by it."; fi
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
