"""A run as a JUnit file, which CI systems show as tests: verdict, limits, gates. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from agentreplay.metrics.condition import shown
from agentreplay.metrics.gate import figure
from agentreplay.metrics.verdict import LIMITED
from agentreplay.report.text import banner, headline

_PROPERTIES = (
    *("total_token_rate", "output_token_rate", "user_output_rate.p50", "user_output_rate.p90"),
    *("interactivity.p50", "interactivity.p90", "tpot.p50", "tpot.p90"),
    *("ttft.p50", "ttft.p95", "ttft.p99", "latency.p50", "latency.p95", "goodput", "error_rate"),
    *("requests.attempted", "requests.succeeded", "requests.failed", "requests.cancelled"),
    *("sessions.started", "sessions.completed", "prefix_reuse.theoretical", "prefix_reuse.server"),
)
"""Figures that stand in the file by their ids, where they were measured."""

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document can hold, not even escaped."""


def junit(value: Mapping[str, Any]) -> str:
    """The file: one case for the verdict, one for each group of its limits, one for each gate."""
    cases = list(_cases(value))
    failures = sum(case.find("failure") is not None for case in cases)
    simulated = value["simulated"]
    counts = {
        "name": banner(simulated) if simulated else "agentreplay",
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": "0",
        "skipped": "0",
        "time": f"{value['window']['seconds']:.3f}",
    }
    root = ElementTree.Element("testsuites", _clean(counts))
    suite = ElementTree.SubElement(root, "testsuite", _clean(counts))
    properties = ElementTree.SubElement(suite, "properties")
    for name, content in _properties(value):
        ElementTree.SubElement(properties, "property", _clean({"name": name, "value": content}))
    suite.extend(cases)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _properties(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "agentreplay", value["agentreplay"]
    if value["simulated"]:
        yield "simulated", value["simulated"]
    yield "run", headline(dict(value)).replace("\n", " · ")
    for name in _PROPERTIES:
        found = figure(value, name)
        if found is not None:
            yield name, repr(found)


def _cases(value: Mapping[str, Any]) -> Iterator[ElementTree.Element]:
    verdict = value["verdict"]
    reasons = {reason["id"]: reason["text"] for reason in verdict["reasons"]}
    against = [f"{name}: {text}" for name, text in reasons.items()]
    against += [
        f"{group['count']} × {group['kind']}: {group['example']}"
        for group in value["failures"]
        if reasons
    ]
    seconds = value["window"]["seconds"]
    yield _case("agentreplay", "verdict", "valid", "\n".join(against), seconds)
    for name, limits in LIMITED.items():
        held = ", ".join(f"{each} {verdict['limits'][each]:.10g}" for each in limits)
        yield _case("agentreplay.verdict", name, f"limit: {held}", reasons.get(name, ""))
    for gate in value["gates"]:
        said = f"it is {shown(gate['metric'], gate['value'])}"
        yield _case("agentreplay.gate", gate["text"], said, gate["reason"] or "")


def _case(
    group: str, name: str, said: str, failure: str, seconds: float = 0.0
) -> ElementTree.Element:
    """A test case: what a passed one says, or why it failed."""
    about = {"classname": group, "name": name, "time": f"{seconds:.3f}"}
    case = ElementTree.Element("testcase", _clean(about))
    if failure:
        first = failure.partition("\n")[0]
        kind = group.rpartition(".")[2]
        inner = ElementTree.SubElement(case, "failure", _clean({"message": first, "type": kind}))
        inner.text = _FORBIDDEN.sub("", failure)
    else:
        ElementTree.SubElement(case, "system-out").text = _FORBIDDEN.sub("", said)
    return case


def _clean(attributes: dict[str, str]) -> dict[str, str]:
    return {name: _FORBIDDEN.sub("", text) for name, text in attributes.items()}
