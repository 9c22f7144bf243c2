#!/bin/sh
# A curve over users on a laptop: short sessions, half a minute for each number of users.
# Without an address the embedded simulated server answers.
#
#   examples/sweep-laptop.sh [http://localhost:8080]
set -eu
exec agentreplay sweep traces/laptop.jsonl ${1:+--url "$1"} \
    --users 1-8 --duration 30s --max-gap 1s --at interactivity.p90=20
