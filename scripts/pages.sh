#!/bin/bash
# Copies the pages, and the files for users that they link to, into a folder. Each keeps its
# path in the repository, so that the links work.
#
#   scripts/pages.sh FOLDER
set -euo pipefail
to=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files '*.md' '*.svg' '*.webp' LICENSE deploy clients/examples clients/shell backends/sqlserver/testdata/adopted.sql \
	':!.github' ':!docs/site' ':!*.go' ':!*go.mod' ':!*go.sum' ':!deploy/debian' ':!deploy/image' | tar -cf - -T - | tar -C "$to" -xf -
