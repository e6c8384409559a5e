#!/usr/bin/env bash
# Runs the tests of make test several times, and prints all tests that failed. In every second run,
# four busy loops run at the same time. The exit code is not 0 if a test failed.
#
#   RACE='<import paths>' tools/flakes.sh RUNS PACKAGE...
#
# The packages in RACE are built with the race detector. Each test binary is linked only once. Logs are
# in bin/flakes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
GO="${GO:-go}"
runs="$1"
shift

out="$PWD/bin/flakes"
rm -rf "$out" && mkdir -p "$out"
loops=()
stop() {
  ((${#loops[@]} == 0)) || kill "${loops[@]}" 2>/dev/null || true
  loops=()
}
trap stop EXIT

# The packages include those of the provider module.
export GOWORK="$PWD/contrib/mcprovider/go.work"

# As many test binaries as in make test run at the same time.
export out
run_package() {
  IFS=' ' read -r path directory <<<"$1"
  binary="$out/$(tr / _ <<<"$path").test"
  [[ -x "$binary" ]] || exit 0 # no test files
  cd "$directory"
  env -u GOWORK "$binary" -test.short -test.timeout=20m -test.count=1 >"$2/$(basename "$binary").log" 2>&1 || echo "$path" >>"$2/failed"
}
export -f run_package

packages="$("$GO" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@")"
cut -d ' ' -f 1 <<<"$packages" | GO="$GO" RACE="$RACE" xargs -P "$(getconf _NPROCESSORS_ONLN)" -d '\n' -I{} bash -c '
  "$GO" test $(grep -qxF "$1" <<<"$RACE" && echo -race) -c -vet=off -ldflags="-s -w" -o "$out/$(tr / _ <<<"$1").test" "$1"' _ {}

for ((run = 1; run <= runs; run++)); do
  load=none
  if ((run % 2 == 0)); then
    load="four busy loops"
    for _ in 1 2 3 4; do
      (while :; do :; done) &
      loops+=($!)
    done
  fi
  mkdir -p "$out/run-$run"
  started=$SECONDS
  xargs -P $((2 * $(getconf _NPROCESSORS_ONLN))) -d '\n' -I{} \
    bash -c 'run_package "$1" "$2"' _ {} "$out/run-$run" <<<"$packages"
  stop
  failed="$([[ -f "$out/run-$run/failed" ]] && wc -l <"$out/run-$run/failed" || echo 0)"
  echo "run $run of $runs: $((SECONDS - started)) s, load: $load, failed packages: $failed"
done

# If a package fails without a failed test, e.g. because of a panic, the package is printed.
failures="$({
  { grep -rhoE '^ *--- FAIL: [^ ]+' "$out"/run-*/ --include='*.log' || true; } | sed 's/^ *--- FAIL: //'
  cat "$out"/run-*/failed 2>/dev/null || true
} | sort | uniq -c | sort -rn)"
if [[ -n "$failures" ]]; then
  echo "failures and their number of runs (logs are in bin/flakes):"
  echo "$failures"
  exit 1
fi
echo "no test failed in $runs runs"
