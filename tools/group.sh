#!/usr/bin/env bash
# Runs a command in a process group of its own. If this script is interrupted or terminated, it
# ends the whole group: go test does not end the test binaries, and these do not end the
# processes that they started.
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
