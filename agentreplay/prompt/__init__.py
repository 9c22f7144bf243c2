"""Prompt text and messages, computed from integers."""
