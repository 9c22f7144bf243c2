"""`probe` and `sim`: trying an endpoint, and serving the simulated one; `scenarios`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from agentreplay import options
from agentreplay.client.machine import LOOP
from agentreplay.commands.output import print_json, print_report
from agentreplay.errors import EXIT_UNUSABLE, AgentReplayError
from agentreplay.scenario import SCENARIOS


@click.command()
@click.argument("url")
@options.addressed
@options.JSON
def probe(url: str, as_json: bool, **address: Any) -> None:
    """Try the endpoint at URL with some thirty small requests, and say what a run can expect.

    \b
    agentreplay probe http://localhost:8000
    """
    import anyio

    from agentreplay.client.probe import probe as probed
    from agentreplay.report.probe import probe_report, probe_value

    endpoint = options.endpoint_of(urls=(url,), **address)
    assert endpoint is not None
    found = anyio.run(probed, endpoint, backend_options=LOOP)
    if as_json:
        print_json(probe_value(found))
    else:
        print_report(probe_report(found))
    if not found.usable:
        sys.exit(EXIT_UNUSABLE)


@click.command()
@click.option(
    "--profile",
    type=click.Choice(["demo", "slow"]),
    default="demo",
    show_default=True,
    help="How big and fast the server is.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on.")
def sim(profile: str, host: str, port: int) -> None:
    """Serve the simulated server over HTTP until stopped."""
    import anyio

    from agentreplay.sim.engine import PROFILES
    from agentreplay.sim.server import serve

    def announce(url: str) -> None:
        click.echo(f"SIMULATED SERVER ({profile}) at {url}", err=True)

    try:
        anyio.run(
            serve,
            PROFILES[profile],
            host,
            port,
            announce,
            backend_options=LOOP,
        )
    except OSError as error:
        raise AgentReplayError(f"can't listen on {host}:{port}: {error.strerror}") from None


@click.command()
@click.argument("name", type=click.Choice(list(SCENARIOS)), required=False)
@options.JSON
def scenarios(name: str | None, as_json: bool) -> None:
    """Show the rules of published benchmarks that `run --scenario NAME` keeps; or of one of them.

    \b
    agentreplay scenarios agentx
    """
    from agentreplay.report.scenarios import scenarios_report

    found = [SCENARIOS[name]] if name else list(SCENARIOS.values())
    if as_json:
        print_json({each.name: asdict(each) for each in found})
    else:
        print_report(scenarios_report(found))
