"""For all tests: properties are checked without a time limit, since a busy machine is no fault."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("agentreplay", deadline=None)
settings.load_profile("agentreplay")
