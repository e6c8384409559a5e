#!/usr/bin/env bash
# Prints packages whose tests start no servers, as arguments for go test.
#
#   tools/packages.sh unit [PATTERN]  those that match the pattern, ./... by default
#   tools/packages.sh changed         those that the working tree changes compared with HEAD,
#                                     and those that import them directly
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO="${GO:-go}"

# Tests that start servers import one of these. One line per package:
# <import path> <directory> <its imports and those of its tests>
packages() {
  "$GO" list -e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}{{end}}' "$@" |
    awk '{
      servers = 0
      for (i = 3; i <= NF; i++)
        if ($i ~ /\/test\/harness$|\/pkg\/etcd$|etcd\/server\/v3\/embed$|\/customresourcetest$|\/test\/bench\/reference$/) servers = 1
      if (!servers) print
    }'
}

case "${1:-}" in
unit)
  packages "${2:-./...}" | cut -d ' ' -f 1
  ;;
changed)
  # A file that is no Go file, such as testdata, belongs to the nearest package above it.
  directories="$({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } | while read -r file; do
    directory="$PWD/$(dirname "$file")"
    until [[ "$directory" == "$PWD" ]] || compgen -G "$directory/*.go" >/dev/null; do directory="$(dirname "$directory")"; done
    [[ "$directory" == "$PWD" ]] || echo "$directory"
  done | sort -u)"
  if [[ -z "$directories" ]]; then
    echo "no Go package of the working tree differs from HEAD" >&2
    exit 1
  fi
  module="$("$GO" list -m)"
  packages ./... | awk -v root="$PWD" -v module="$module" -v directories="$directories" '
    BEGIN {
      n = split(directories, all, "\n")
      for (i = 1; i <= n; i++) changed[module substr(all[i], length(root) + 1)] = 1
    }
    {
      for (i = 1; i <= NF; i++)
        if (i != 2 && $i in changed) { print $1; next }
    }'
  ;;
*)
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
