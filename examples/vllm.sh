#!/bin/sh
# Replay the bundled sessions against a vLLM server that is already running:
#
#   vllm serve MODEL --enable-prefix-caching --enable-prompt-tokens-details
#
# The last flag makes it report cached tokens, so that the report can show how much of the
# possible prefix reuse it captured.
#
#   examples/vllm.sh http://localhost:8000 [TRACES]
set -eu
exec agentreplay run "${2:-traces}" --url "${1:-http://localhost:8000}" --users 8 --duration 2m
