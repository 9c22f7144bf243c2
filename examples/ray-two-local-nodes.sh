#!/bin/sh
# Two nodes of a Ray cluster on this machine, and a run whose users they share. On two machines the
# second `ray start` runs on the other one, with the address of the first.
#
#   pip install 'agentreplay-loadgen[ray]'
#   examples/ray-two-local-nodes.sh http://localhost:8000 [TRACES]
set -eu
head=127.0.0.1:6399
export RAY_USAGE_STATS_ENABLED=0

# In the foreground of a job each, so that these two are ended at the end and no other cluster is.
ray start --block --head --port "${head#*:}" --node-ip-address "${head%:*}" --num-cpus 1 \
    --include-dashboard false --min-worker-port 0 --max-worker-port 0 >/dev/null &
first=$!
trap 'kill "$first"; wait' EXIT
until ray health-check --address "$head" 2>/dev/null; do
    kill -0 "$first"  # it has not ended
    sleep 1
done
ray start --block --address "$head" --node-ip-address "${head%:*}" --num-cpus 1 \
    --min-worker-port 0 --max-worker-port 0 >/dev/null &
second=$!
trap 'kill "$second" "$first"; wait' EXIT

# The second node is waited for: two workers need a CPU each, and each node has one.
agentreplay run "${2:-traces}" --url "$1" --ray "$head" --workers 2 --duration 30s --max-gap 2s
