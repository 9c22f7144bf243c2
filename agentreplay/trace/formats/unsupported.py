"""Formats that are known and not read: so that their files are named for what they are. Pure."""

from __future__ import annotations


def name(record: object) -> str | None:
    """What a record is, where its format is known and not read; None where it isn't known."""
    if isinstance(record, list):
        return next(filter(None, map(name, record[:3])), None)
    if not isinstance(record, dict):
        return None
    has = record.keys().__contains__
    known = {
        "a Langfuse export": has("observations") or (has("traceId") and has("type")),
        "a SWE-agent trajectory (it records no times)": has("trajectory") and has("info"),
        "a task of Cline or Roo Code": has("ts") and (has("say") or has("ask")),
        "an Applied Compute workload profile": has("num_turns") and has("input_prompt_length"),
        "SageMaker captured data": has("captureData"),
        "an EvalScope workload trace": has("body") and has("timestamp"),
        "AIPerf inputs": has("data") and isinstance(record["data"], list),
        "an AIPerf dataset of turns": has("turns") and has("session_id"),
        "a run's records by AIPerf": has("metadata") and has("metrics"),
        "Qwen Code chats": has("usageMetadata"),
        "ShareGPT conversations": has("conversations"),
        "chat messages for fine-tuning (they record no times and no lengths)": has("messages"),
        "HTTP cassettes": has("interactions"),
    }
    return next((what for what, fits in known.items() if fits), None)
