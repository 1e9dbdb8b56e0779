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

print "qsidecar" .
print "the Go library" "$("$go" env GOROOT)"
modules=$(CGO_ENABLED=0 GOOS=linux "$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}	{{.Dir}}{{end}}{{end}}' ./cmd/qsidecar)
sort -u <<<"$modules" | while IFS=$'\t' read -r name dir; do
	[ -z "$name" ] || print "$name" "$dir"
done
