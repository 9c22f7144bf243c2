"""What a probe looks at, and what its answers mean for a replay. Pure.

Each thing is a `Finding`: what was found, whether it is as a replay needs it, and where it is not,
what that means and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

from agentreplay.client.calibrate import REFUSED, Calibration
from agentreplay.client.endpoint import MASK, Endpoint, is_secret, shown
from agentreplay.client.stream import Reply
from agentreplay.metrics.record import Record

NAMES = (
    *("address", "tls", "proxy", "auth", "model", "streaming", "usage", "cached_tokens"),
    *("stream_options", "ignore_eos", "min_tokens", "max_completion_tokens", "output_length"),
    *("context", "metrics", "tokenize", "template", "tokens_per_word", "history"),
    "round_trip_s",
)
"""What is looked at, in the order in which it is told."""

BLOCKING = ("address", "tls", "auth", "model", "streaming")
"""Without these no request of a replay succeeds."""

EXACT = 0.002
"""By so little a word's cost may be off one token: less than a token in a prompt of 200 words."""

NOT_TRIED = "not tried"

OUTPUT_TOKENS = 24
"""Length of the answers that show whether a length is kept."""

ABSENT = (404, 405)
_DENIED = (401, 403)
_SHORTEST_SECRET = 8  # what is shorter ("EMPTY", "true") is none, and may be part of any word


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: One of `NAMES`.
        value: What was found, as a number or in short words.
        ok: None where it does not apply or is not known.
        why: What a False means for a replay and what to do; else a remark, or nothing.
    """

    name: str
    value: str | int | float | None
    ok: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was looked at, one for each of `NAMES`.

    Attributes:
        findings: In the order of `NAMES`.
        simulated: Profile of a simulated server; None for a real one.
    """

    findings: tuple[Finding, ...]
    simulated: str | None = None

    def __getitem__(self, name: str) -> Finding:
        return self.findings[NAMES.index(name)]

    @property
    def usable(self) -> bool:
        """Whether a replay against the address as it was given can succeed."""
        blocked = any(self[name].ok is False for name in BLOCKING)
        return self["streaming"].ok is True and not blocked

    @property
    def worth_knowing(self) -> int:
        """How many findings are a no that a replay can live with."""
        return sum(each.ok is False and each.name not in BLOCKING for each in self.findings)

    @property
    def verdict(self) -> str:
        """Usable or not, in a line."""
        if self.usable:
            count = self.worth_knowing
            things = "one thing is" if count == 1 else f"{count} things are"
            return f"usable; {things if count else 'nothing else is'} worth knowing"
        reasons = (self[name] for name in BLOCKING)
        first = next((each for each in reasons if each.ok is False), self["streaming"])
        return f"not usable: {first.name}: {first.why or 'not known'}"


class Seen(NamedTuple):
    """What came of one request: *reply* is None where no response ended."""

    record: Record
    reply: Reply | None

    @property
    def status(self) -> int | None:
        """The HTTP status, where one came."""
        return self.reply.status if self.reply else None

    @property
    def words(self) -> str:
        """Why it failed, in words."""
        return self.record.error.message if self.record.error else ""


def address(
    given: Endpoint, endpoint: Endpoint, model: str, models: list[str] | None, seen: Seen
) -> Finding:
    """Whether the address as given is that of the API."""
    there, status = shown(endpoint.urls[0]), seen.status
    if is_tls(endpoint, seen):
        return Finding("address", there, None)
    if status is None and seen.record.first_token_ns is None:
        return Finding("address", there, False, f"no answer: {seen.words}")
    if status is not None and 300 <= status < 400:
        return Finding("address", there, False, "it redirects: give the address it points to")
    if status in ABSENT and not is_of_model(seen, model, models):
        api = given.api
        why = f"HTTP {status} with and without /v1: {api.path} is not served there"
        if models is not None:
            why += "; a list of models is, so try another --api"
        return Finding("address", there, False, why)
    if endpoint.urls != given.urls:
        why = f"{shown(given.urls[0])} is not there, this is: give this full address instead"
        return Finding("address", there, False, why)
    return Finding("address", there, True)


def is_tls(endpoint: Endpoint, seen: Seen) -> bool:
    """Whether a request failed for its certificate."""
    failure = seen.record.error
    if failure is None or seen.status is not None or not endpoint.urls[0].startswith("https:"):
        return False
    # A proxy's transport gives the words only.
    return failure.kind == "tls" or "CERTIFICATE" in failure.message or "SSL" in failure.message


def tls(endpoint: Endpoint, seen: Seen) -> Finding:
    """Whether the certificate is trusted."""
    if not endpoint.urls[0].startswith("https:"):
        return Finding("tls", "no https", None)
    if is_tls(endpoint, seen):
        why = f"{seen.words}: give its certificate with --ca FILE, or trust any with --insecure"
        return Finding("tls", "not trusted", False, why)
    if seen.status is None:
        return Finding("tls", "not known", None)
    if endpoint.insecure:
        return Finding("tls", "not checked", None, "--insecure trusts any certificate")
    return Finding("tls", "trusted", True)


def proxy(endpoint: Endpoint) -> Finding:
    """The proxy that the environment names for this host, as `open_client` takes it."""
    parts = urlsplit(endpoint.urls[0])
    proxy = getproxies().get(parts.scheme)
    if not proxy or not parts.hostname or proxy_bypass(parts.hostname):
        return Finding("proxy", "none", True)
    why = f"every time measured includes it: put {parts.hostname} into NO_PROXY to go without"
    return Finding("proxy", proxy.rpartition("@")[2], False, why)


def auth(endpoint: Endpoint, seen: Seen) -> Finding:
    """Whether the key, or none, is accepted."""
    names = {name.lower() for name, _ in endpoint.headers}
    sent = bool(endpoint.api_key) or bool(names & {"authorization", "x-api-key", "api-key"})
    if seen.status in _DENIED:
        if sent:
            return Finding("auth", "refused", False, f"the key was refused: {seen.words}")
        why = f"no key was sent: give --api-key or set AGENTREPLAY_API_KEY ({seen.words})"
        return Finding("auth", "missing", False, why)
    if seen.status not in (200, *REFUSED):
        return Finding("auth", "not known", None)
    return Finding("auth", "key accepted" if sent else "no key sent, none needed", True)


def model(model: str, models: list[str] | None, seen: Seen) -> Finding:
    """Whether the model is served."""
    if seen.status is None and models is None:
        return Finding("model", "not known", None)
    listed = ", ".join((models or [])[:5]) + (", …" if len(models or ()) > 5 else "")
    if is_of_model(seen, model, models):
        what = f"--model takes one of: {listed}" if models else "name one that it serves by --model"
        return Finding("model", model, False, f"{seen.words}; {what}")
    if seen.status not in (200, *REFUSED):
        return Finding("model", model, None, f"listed: {listed}" if models else "")
    if models is None:
        return Finding("model", model, True, "the server has no list of models")
    if model not in models:
        return Finding("model", model, True, f"served, though not listed; listed: {listed}")
    return Finding("model", model, True, f"listed: {listed}" if len(models) > 1 else "")


def is_of_model(seen: Seen, model: str, models: list[str] | None) -> bool:
    """Whether a refusal is about the model: some servers say 404 there, too."""
    if seen.status not in (*ABSENT, *REFUSED) or model in (models or ()):
        return False
    said = seen.words.lower()
    return "model" in said and (model.lower() in said or bool(models))


def streaming(seen: Seen) -> Finding:
    """Whether answers are event streams that can be read."""
    if seen.record.error is None:
        return Finding("streaming", "event stream", True)
    what = "no stream"
    if seen.status == 200 and seen.reply and seen.reply.content_type == "text/event-stream":
        what = "broken stream"
    return Finding("streaming", what, False, f"no request would succeed: {seen.words}")


def usage(seen: Seen) -> Finding:
    """Whether streams state the token counts."""
    record = seen.record
    if record.error is not None:
        return Finding("usage", "not known", None)
    if record.isl is not None and not record.estimated:
        return Finding("usage", f"{record.isl} in, {record.osl} out", True)
    if record.isl is None and record.estimated:
        why = "token rates and lengths are only estimates: have the server send usage in streams"
        return Finding("usage", "none", False, why)
    side = "input" if record.isl is None else "output"
    return Finding("usage", "in part", False, f"{side} tokens are missing, and are estimated")


def output_length(seen: Seen) -> Finding:
    """Whether an answer is as long as asked for."""
    record = seen.record
    if record.error is not None or record.osl is None:
        return Finding("output_length", "not known", None)
    value = f"{record.osl} of {OUTPUT_TOKENS}"
    if record.estimated:
        return Finding("output_length", f"{value} chunks", None, "chunks only: no usage is sent")
    if record.osl == OUTPUT_TOKENS:
        return Finding("output_length", value, True)
    why = (
        "answers have lengths of their own: a run is invalid (length_not_controlled) unless they "
        "happen to fit or --allow osl_error=… lets it pass"
    )
    return Finding("output_length", value, False, why)


def context(known: Calibration) -> Finding:
    """How much fits."""
    if known.context_tokens is None:
        why = "--context TOKENS says it, so that sessions too long for it are left out"
        return Finding("context", "not said", None, why)
    return Finding("context", known.context_tokens, True)


def template(known: Calibration) -> Finding:
    """What the chat template adds."""
    if not known.measured:
        cause = known.failure.message if known.failure else "no answer"
        why = f"not measured, so prompts are longer than recorded by what it adds: {cause}"
        return Finding("template", "not known", False, why)
    template = known.dialect.template
    if template.form != "messages":
        return Finding("template", f"{template.prompt} a prompt", True)
    parts = [f"{template.prompt} a prompt", f"{template.pair} a pair"]
    if template.system is None:
        why = "the system role is refused: system prompts are sent in the user's first message"
        return Finding("template", ", ".join(parts), False, why)
    parts.insert(1, f"{template.system} a system message")
    return Finding("template", ", ".join(parts), True)


def tokens_per_word(known: Calibration) -> Finding:
    """What a word of a prompt costs."""
    if not known.measured:
        return Finding("tokens_per_word", "not known", None)
    cost = known.dialect.template.tokens_per_word
    if abs(cost - 1) <= EXACT:
        return Finding("tokens_per_word", 1.0, True)
    why = "compensated: prompts have fewer or more words, and their lengths are right on average"
    return Finding("tokens_per_word", round(cost, 3), False, why)


def inapplicable(name: str) -> Finding:
    """A field that the API does not have."""
    return Finding(name, "not in this API", None)


def accepted(name: str, seen: Seen, why: str) -> Finding:
    """Whether a field is taken."""
    if seen.status == 200:
        return Finding(name, "accepted", True)
    if seen.status in REFUSED:
        return Finding(name, "refused", False, f"{why} ({seen.words})")
    return Finding(name, "not known", None, seen.words)


def effective(finding: Finding, seen: Seen, left: Seen) -> Finding:
    """Whether a field that was accepted holds the output's length; some servers ignore it.

    An answer that was *left* to the model may be as long, and then this shows nothing.
    """
    record = seen.record
    if not finding.ok or record.error is not None or record.osl is None:
        return finding
    if record.estimated:
        return replace(finding, why="its effect can't be told: no usage is sent")
    value = f"accepted, {record.osl} of {OUTPUT_TOKENS}"
    if record.osl == OUTPUT_TOKENS:
        why = "this model's answer is as long without it" if left.record.osl == record.osl else ""
        return replace(finding, value=value, why=why)
    why = "without effect: answers end where the model ends them, unless another field holds them"
    return replace(finding, value=value, ok=False, why=why)


def secrets(endpoint: Endpoint) -> list[str]:
    """What the user gave that must not be told, not even where a server repeats it."""
    secrets = [endpoint.api_key or "", *(value for _, value in endpoint.headers)]
    for _, value in endpoint.headers:
        secrets.append(value.rpartition(" ")[2])  # of "Bearer KEY" the key alone, too
    parts = urlsplit(endpoint.urls[0])
    secrets.append(parts.password or "")
    for name, value in parse_qsl(parts.query):
        if is_secret(name):
            secrets.append(value)
    long = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
    return sorted(long, key=len, reverse=True)


def masked(finding: Finding, secrets: Sequence[str]) -> Finding:
    """The finding without what must not be told."""
    value, why = finding.value, finding.why
    for secret in secrets:
        why = why.replace(secret, MASK)
        if isinstance(value, str):
            value = value.replace(secret, MASK)
    return replace(finding, value=value, why=why)
