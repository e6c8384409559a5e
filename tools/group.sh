#!/usr/bin/env bash
# Runs a command in a separate process group. If this script is interrupted or terminated, it ends the
# whole group, because go test does not end test binaries, and these do not end their child processes.
set -m
"$@" &
group=$!
end() {
  trap '' INT TERM HUP
  kill -TERM -- "-$group" 2>/dev/null
  for _ in {1..50}; do
    kill -0 -- "-$group" 2>/dev/null || exit 130
    sleep 0.1
  done
  kill -KILL -- "-$group" 2>/dev/null
  exit 130
}
trap end INT TERM HUP
wait "$group"
