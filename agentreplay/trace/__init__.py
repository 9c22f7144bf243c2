"""Recorded sessions: the model, its structure, and its readers."""
