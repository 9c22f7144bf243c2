"""Protocols as pure functions: HTTP/1.1, event streams, chat completions."""
