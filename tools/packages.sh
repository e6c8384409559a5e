#!/usr/bin/env bash
# Prints packages with tests that do not start servers, as arguments for go test.
#
#   tools/packages.sh unit [PATTERN]  packages that match the pattern, which is ./... by default
#   tools/packages.sh changed         packages that differ from HEAD, and packages that import
#                                     them directly
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO="${GO:-go}"

# Tests that start servers must import one of the packages in the pattern. The output of go list has
# one line per package: <import path> <directory> <imports of the package and its tests>
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
  # Other files, e.g. testdata, belong to the package in the nearest parent directory.
  directories="$({ git diff --name-only HEAD; git ls-files --others --exclude-standard; } | while read -r file; do
    directory="$PWD/$(dirname "$file")"
    until [[ "$directory" == "$PWD" ]] || compgen -G "$directory/*.go" >/dev/null; do directory="$(dirname "$directory")"; done
    [[ "$directory" == "$PWD" ]] || echo "$directory"
  done | sort -u)"
  if [[ -z "$directories" ]]; then
    echo "no Go package differs from HEAD" >&2
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
