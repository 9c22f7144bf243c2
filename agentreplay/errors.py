"""Everything agentreplay raises on purpose.

A failed request is not here: it is a Record. What a user can mend is an `AgentReplayError` whose
message says what is wrong, where, and what to do; the command line prints it as one line and ends
with `exit_code`.
"""


class AgentReplayError(Exception):
    """The user can mend this."""

    exit_code = 2


class TraceError(AgentReplayError):
    """A trace file is missing, is of no known kind, or breaks its format."""


class EndpointError(AgentReplayError):
    """The endpoint can't be used at all: nothing could be measured."""

    exit_code = 4
