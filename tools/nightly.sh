#!/usr/bin/env bash
# Runs the suites that are too slow for make test, and prints a table with suite, tests, duration and
# result. The exit code is not 0 if a suite failed. Logs are in bin/nightly.
#
#   tools/nightly.sh REGEXP   runs only suites with a matching name
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only="$1"
go_test="go test -vet=off -ldflags=-s\ -w -count=1 -v"

# With -latency, the servers of the noisy-neighbor tests are other processes, so that their heap, goroutines and counters
# are not checked. Therefore all rows run in process, too, except those that check none of these.
suites() {
  cat <<END
unit, race detector|$go_test -race -timeout 30m \$(tools/packages.sh unit | grep -v '/test/mutants\$')
servers, race detector|$go_test -race -timeout 60m -p 2 \$(go list ./pkg/... ./test/integration/... ./test/admission | grep -vxF "\$(tools/packages.sh unit)")
whole suites|$go_test -timeout 60m -p 2 \$(go list ./... | grep -vE '/test/(mutants|isolation|noisyneighbors|robustness|ringprocesses)\$')
vet of tools|go -C tools vet ./...
models|$go_test -timeout 20m -run 'Model\$' ./pkg/client/ring ./pkg/client ./pkg/replication/push
provider module, race detector|cd contrib/mcprovider && $go_test -race -timeout 20m ./...
kcp clients|make --no-print-directory compat TEST_FLAGS=-v
oldest kubectl|make --no-print-directory oldest-kubectl TEST_FLAGS=-v
upgrade|make --no-print-directory upgrade PREVIOUS="\$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || echo HEAD)"
mutants|make --no-print-directory mutants
isolation|make --no-print-directory isolation ISOLATION_FLAGS='-inputs 100000 -pairs 500'
noisy neighbors, in process|$go_test -timeout 30m -skip '^TestNoisyNeighbors\$/^(load|watches|storage|cached|providers|exports|consumers|paths|overdue|homes|tokens)\$' ./test/noisyneighbors
noisy neighbors|make --no-print-directory noisy-neighbors TEST_FLAGS=-v
robustness|make --no-print-directory robustness ROBUSTNESS_FLAGS='-duration 3m'
ring processes|make --no-print-directory ring-processes RING_FLAGS='-duration 3m'
leaks|make --no-print-directory leaks CHANGES=2000
END
}

logs="$PWD/bin/nightly"
mkdir -p "$logs"
table="$(printf '%-32s %7s %9s  %s' suite tests duration result)"
failed=0
while IFS='|' read -r name command; do
  [[ "$name" =~ ^($only)$ ]] || continue
  log="$logs/$(tr -c 'a-z\n' - <<<"$name").log"
  started=$SECONDS result=passed
  echo "==> $name"
  (bash -c "$command") </dev/null >"$log" 2>&1 || { result=FAILED failed=1; grep -aE '^ *--- FAIL|^(panic|fatal error):|^WARNING: DATA RACE|^FAIL' "$log" | head -50; }
  tests="$(grep -acE '^ *--- PASS' "$log")"
  table+="$(printf '\n%-32s %7s %7s s  %s' "$name" "$tests" "$((SECONDS - started))" "$result")"
done < <(suites)
echo "$table"
exit "$failed"
