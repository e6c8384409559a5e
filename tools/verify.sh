#!/usr/bin/env bash
# Checks that formatting, module files and generated code are up to date. It changes no files, because
# code is generated in a copy of the tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

GO="${GO:-go}"
failed=0
fail() {
  echo "verify: $*" >&2
  failed=1
}

unformatted="$(find . -name '*.go' -not -path './bin/*' -not -path '*/testdata/*' -print0 | xargs -0 gofmt -l)"
if [[ -n "$unformatted" ]]; then
  fail "not formatted; run 'make lint-fix': $(tr '\n' ' ' <<<"$unformatted")"
fi

for module in . tools test/compat; do
  "$GO" -C "$module" mod tidy -diff || fail "$module/go.mod or go.sum is not tidy; run 'go -C $module mod tidy'"
done
"$GO" -C tools vet ./openapi-prune ./diagrams || fail "go vet reports errors in tools"
# go vet is not used for these, because it would analyze all their imports for a minute.
"$GO" -C tools build -o /dev/null ./kubectl ./dex || fail "tools do not compile"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# A module that uses this one by a go.work must not require a version of it.
for module in contrib/mcprovider; do
  cp "$module/go.mod" "$scratch/nested.mod"
  cp "$module/go.sum" "$scratch/nested.sum"
  "$GO" mod edit -replace "github.com/shardplane/shardplane=$PWD" "$scratch/nested.mod"
  GOWORK=off "$GO" -C "$module" mod tidy -modfile "$scratch/nested.mod"
  "$GO" mod edit -dropreplace github.com/shardplane/shardplane -droprequire github.com/shardplane/shardplane "$scratch/nested.mod"
  { diff "$module/go.mod" "$scratch/nested.mod" && diff "$module/go.sum" "$scratch/nested.sum"; } ||
    fail "$module/go.mod or go.sum is not tidy; apply the printed changes"
done

mkdir -p "$scratch/before" "$scratch/after"
tar -cf - --exclude=./.git --exclude=./bin --exclude='./.kcp*' . | tar -xf - -C "$scratch/before"
cp -a "$scratch/before/." "$scratch/after"
make -C "$scratch/after" --no-print-directory -s generate
diff -r "$scratch/before" "$scratch/after" ||
  fail "generated files are not up to date; run 'make generate' and commit the changes"

exit "$failed"
