"""What each metric means, in the words of docs/metrics.md. Values only."""

from __future__ import annotations

_TEXTS = {
    "total_token_rate input_token_rate output_token_rate": (
        "tokens that arrived in the window / its length"
    ),
    "request_rate": "requests sent in the window / its length",
    "total_token_rate_run input_token_rate_run output_token_rate_run request_rate_run": (
        "over all successful measured requests: Σ / (last end − first sent), the throughput "
        "of AgentX"
    ),
    "interactivity": "1 / TPOT: tokens a second for one user while an answer streams",
    "interactivity_corrected": (
        "(OSL − tokens of the first chunk) / (last token − first token): for servers that "
        "send several tokens at once"
    ),
    "interactivity_normalised": "OSL / latency: the wait for the first token counts as well",
    "user_output_rate": "a user's output tokens in the window / its length",
    "user_output_rate_streaming": (
        "a user's output tokens in the window / the time in which at least one of the user's "
        "answers was streaming"
    ),
    "ttft": "time to first token: first token − sent",
    "ttft_visible": "time to the first token of content or of a tool call: that − sent",
    "tpot": "time per output token: (last token − first token) / (OSL − 1)",
    "latency": "last token − sent",
    "latency_from_due": "last token − due: it counts from when the plan wanted it sent",
    "lag": "sent − due, less the time that it waited for the calls before it or for a busy server",
    "chunk_gap": "time between successive chunks with tokens, pooled over all answers",
    "isl osl": "input and output tokens of a request, as the server counted them",
    "prefix_reuse": (
        "theoretical: tokens of the longest prefix that was sent before in this run / input "
        "tokens; theoretical_blocks: the same in whole blocks; trace_blocks: blocks seen "
        "earlier in the recorded session, or in the set where its sessions share prefixes; "
        "server: cached / input tokens as the server reports them; captured: server / "
        "theoretical over the requests that report it (over 1 when the server reuses what it "
        "generated)"
    ),
    "isl_error osl_error": (
        "absolute relative error of the served lengths against the recorded ones; recorded "
        "zeros are left out"
    ),
    "isl_bias osl_bias": "mean of the signed relative error of the served lengths",
    "requests": (
        "measured requests: attempted = succeeded + failed + cancelled; warmup were sent "
        "before the window opened"
    ),
    "errors": "requests that failed, by the cause",
    "error_rate context_overflow_rate": (
        "requests that failed, and those that were too long for the model, / attempted"
    ),
    "goodput": (
        "requests that kept every limit on single requests / (attempted − those cut before "
        "they had passed one); null without limits"
    ),
    "partial_tokens": "output of failed requests, which counts nowhere else",
    "busy": "refusals that were waited out with --retry-busy, and the seconds waited for them",
    "sessions": (
        "plays started and completed, distinct sessions among them, and reused ones; "
        "most_plays of one session; calls_unsent: calls of plays in which one failed that "
        "were never sent"
    ),
    "session_seconds": (
        "first due to last end of the plays that were completed, and began at the session's "
        "beginning"
    ),
    "session_model_seconds session_wait_seconds": (
        "of session_seconds the time with at least one call under way, and the rest: tools "
        "and thinking"
    ),
    "session_slowdown": (
        "Σ latency / Σ recorded duration of a play's successful calls, where at least 3 were "
        "measured when recorded"
    ),
    "session_slowdown_main session_slowdown_subagents": (
        "session_slowdown of the main agent's calls, and of those of all others"
    ),
    "coverage": (
        "how far into the window measured samples reach: the last first token (ttft) and the "
        "last token of a request with a time per token (tpot); 1 where they reach to its end"
    ),
    "concurrency": "lanes_mean, in_flight_mean, in_flight_max over the window",
    "total_token_rate_per_gpu total_token_rate_run_per_gpu": (
        "total_token_rate and total_token_rate_run / the number of GPUs (--gpus)"
    ),
    "tokens_per_dollar dollars_per_million_tokens": (
        "total_token_rate_run_per_gpu × 3600 / dollars for a GPU-hour (--gpu-hour), and a "
        "million divided by it"
    ),
    "bill": "what the run costs at --prices",
    "client": (
        "whether this machine kept up: loop_late_share (share of time in which its loop was "
        "over 10 ms late), loop_late_max in seconds, cpu_share of each process; who stamped what "
        "arrived (stamps), how long it waited at most to be read (read_delay_max, in seconds; "
        "null without the kernel's stamps), and when the system's clock was set (clock_steps); "
        "reconnects, bursts, bundled_reads (reads with more than one event)"
    ),
}

DEFINITIONS = {name: text for names, text in _TEXTS.items() for name in names.split()}
"""By the id of the metric."""
