#!/bin/bash
# Prints the licences of all modules that are linked into the program. They must go with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}

# print NAME FOLDER: the licence files in the folder. A folder without one is an error.
print() {
	local file found=
	for file in "$2"/*; do
		case ${file##*/} in
		[Ll][Ii][Cc][Ee][Nn][CcSs][Ee]* | [Nn][Oo][Tt][Ii][Cc][Ee]* | [Cc][Oo][Pp][Yy][Ii][Nn][Gg]*)
			printf '\n======== %s: %s\n\n' "$1" "${file##*/}"
			cat "$file"
			found=1 ;;
		esac
	done
	[ -n "$found" ] || { echo "licenses.sh: $1 has no licence file" >&2; return 1; }
}

if [ -e LICENSE ]; then print "qsidecar" .; else
	echo "qsidecar's source has no LICENSE file: none is granted by it. What follows are those of what is linked in."
fi
print "the Go library" "$("$go" env GOROOT)"
modules=$(CGO_ENABLED=0 GOOS=linux "$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}	{{.Dir}}{{end}}{{end}}' ./cmd/qsidecar)
sort -u <<<"$modules" | while IFS=$'\t' read -r name dir; do
	[ -z "$name" ] || print "$name" "$dir"
done
