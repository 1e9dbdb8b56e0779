#!/bin/sh
# Builds the image of a static binary, without a container engine and without downloading
# another image. The same binary, version and date give the same image, bit for bit.
#
#   deploy/image/build.sh bin/qsidecar qsidecar/qsidecar:1.0.0
#
# VERSION and REVISION are in its labels (default: the tag's, and git's), SOURCE_DATE_EPOCH
# in its dates (default: the commit's). PLATFORM (for example linux/arm64; default: this
# machine's) is the binary's. BUILDAH is the command, with options (default: buildah).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
binary=$1 tag=$2

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/root volumes=$context/volumes
# Set every mode, whatever this user's umask.
install -d -m 0755 "$root" "$root/etc" "$root/etc/ssl" "$root/etc/ssl/certs" "$root/usr" "$root/usr/bin" "$root/usr/share" \
	"$root/usr/share/doc" "$root/usr/share/doc/qsidecar" \
	"$root/run" "$root/var" "$root/var/lib" "$volumes" "$volumes/run" "$volumes/var" "$volumes/var/lib" "$volumes/run/qsidecar"
install -d -m 0750 "$volumes/var/lib/qsidecar"
(cd "$here/.." && "${GO:-go}" run ./image/roots) >"$context/roots"
install -m 0644 "$here/passwd" "$here/group" "$root/etc/"
install -m 0644 "$context/roots" "$root/etc/ssl/certs/ca-certificates.crt"
"$here/../../scripts/licenses.sh" >"$context/licenses"
install -m 0644 "$context/licenses" "$root/usr/share/doc/qsidecar/LICENSES.txt"
install -m 0755 "$binary" "$root/usr/bin/qsidecar"

git="git -C $here"
platform=${PLATFORM:-linux/$("${GO:-go}" env GOARCH)}
${BUILDAH:-buildah} build --isolation chroot --platform "$platform" --layers=false --identity-label=false --quiet \
	--timestamp "${SOURCE_DATE_EPOCH:-$($git log -1 --format=%ct)}" \
	--build-arg "VERSION=${VERSION:-${tag##*:}}" --build-arg "REVISION=${REVISION:-$($git describe --always --dirty --abbrev=40 --match none)}" \
	--file "$here/Containerfile" --tag "$tag" "$context"
