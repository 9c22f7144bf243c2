"""`python -m agentreplay` is the command."""

from agentreplay.cli import main

main()
