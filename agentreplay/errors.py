"""Everything agentreplay raises on purpose.

A failed request is not here: it is a Record. What a user can mend is an `AgentReplayError` whose
message says what is wrong, where, and what to do; the command line prints it as one line and ends
with `exit_code`.
"""

EXIT_MISSED = 1  # a figure is not as it was asked to be, or worse than in a baseline
EXIT_USAGE = 2  # a wrong option or file, also one that can't be written
EXIT_INVALID = 3  # the run finished, but can't be trusted
EXIT_UNUSABLE = 4  # nothing could be measured at the endpoint
EXIT_SIGNALLED = 128  # plus the number of the signal


class AgentReplayError(Exception):
    """The user can mend this."""

    exit_code = EXIT_USAGE


class TraceError(AgentReplayError):
    """A trace file is missing, is of no known kind, or breaks its format."""


class EndpointError(AgentReplayError):
    """The endpoint can't be used at all: nothing could be measured."""

    exit_code = EXIT_UNUSABLE
