#!/bin/sh
# A published comparison of two systems, from its two points: total tokens a second of one GPU at
# a P90 interactivity of 50 tokens a second, and dollars for a GPU-hour.
#
# It prints 24.4 % more tokens a second, 87.4 % more tokens per dollar, 46.6 % cheaper per token.
# With your own runs, name directories in place of the numbers:
#
#   agentreplay curve MI355X=runs/mi355x other=runs/other --at interactivity.p90=50 --gpus 8 …
set -eu
exec agentreplay curve MI355X=50,7567 other=50,6083 --at interactivity.p90=50 \
    --gpu-hour MI355X=1.50 --gpu-hour other=2.26
