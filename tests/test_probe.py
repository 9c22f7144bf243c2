"""Rules of the probe: what it finds out about servers of many kinds, over real sockets."""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console
from scripted import MODEL, Answer, Event, Request, ScriptedServer, c, done, fin, role, usage

from agentreplay.client.endpoint import APIS, Endpoint, api_url
from agentreplay.client.findings import NAMES, NOT_TRIED, Finding, Findings
from agentreplay.client.probe import probe
from agentreplay.report.probe import probe_report, probe_value

GUARD_S = 30.0
"""Bounds a test that hangs; nothing is measured with it."""

BLOCK = 128
PLAIN = {"model", "messages", "stream", "max_tokens"}
OWN_LENGTH = 7


@dataclass
class Served:
    """A server to be scripted: without any change one like vLLM with Qwen3's template.

    Attributes:
        base: Where its API is.
        known: The fields that it takes; None for any.
        holds: Fields that hold the output's length.
        own_length: Where the model ends an answer that nothing holds.
        counts: It sends usage.
        caches: It says how much of a prompt it has found again.
        streams: Its answers are event streams.
        forgets: Its template drops old turns of the assistant: all but the last one, or all.
        per_word: Tokens of a word.
        system: Its template takes system messages.
        length: Of its context.
        models: Those that it serves.
        refusal: Its answer to every prompt.
        extras: It has /metrics and /tokenize.
        seen: The prompts so far.
    """

    base: str = "/v1"
    known: Collection[str] | None = None
    holds: Collection[str] = ("ignore_eos", "min_tokens")
    own_length: int = OWN_LENGTH
    counts: bool = True
    caches: bool = True
    streams: bool = True
    forgets: str = "nothing"
    per_word: float = 1.0
    system: bool = True
    length: int | None = 32_768
    models: tuple[str, ...] = (MODEL,)
    refusal: Answer | None = None
    extras: bool = True
    seen: set[str] = field(default_factory=set)

    def __call__(self, request: Request) -> Answer:
        """Answer *request*."""
        path = request.path.partition("?")[0]
        if path == f"{self.base}/models":
            return listing(*self.models, length=self.length)
        if path in ("/metrics", "/tokenize") and self.extras:
            return Answer(body=b"{}")
        if path != f"{self.base}/chat/completions":
            return Answer(status=404, body=b'{"detail": "Not Found"}')
        return self.refusal or self._chat(json.loads(request.body))

    def _chat(self, body: dict[str, Any]) -> Answer:
        if body["model"] not in self.models:
            return refused(404, f"The model `{body['model']}` does not exist.")
        if self.known is not None and (extra := body.keys() - PLAIN - set(self.known)):
            return Answer(status=422, body=b'{"detail": "Unexpected: %b"}' % str(extra).encode())
        if not self.system and body["messages"][0]["role"] == "system":
            return refused(400, "System role not supported")
        limit = int(body.get("max_tokens") or body["max_completion_tokens"])
        osl = limit if any(body.get(name) for name in self.holds) else min(limit, self.own_length)
        if not self.streams:
            return Answer(body=b'{"choices": []}')
        tokens: list[tuple[float, Event]] = [(0.0, c(1)) for _ in range(osl)]
        counts: list[tuple[float, Event]] = []
        if self.counts and body.get("stream_options"):
            isl = self._isl(body["messages"])
            found = self._found(body["messages"], isl) if self.caches else None
            counts = [(0.0, usage(isl, osl, found))]
        return Answer(script=[(0.0, role()), *tokens, (0.0, fin("length")), *counts, (0.0, done())])

    def _isl(self, messages: list[dict[str, str]]) -> int:
        assistants = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        left_out = {"nothing": [], "old": assistants[:-1], "all": assistants}[self.forgets]
        kept = [message for n, message in enumerate(messages) if n not in left_out]
        words = sum(round(self.per_word * len(each["content"].split())) for each in kept)
        return words + 5 * len(kept) + 3

    def _found(self, messages: list[dict[str, str]], isl: int) -> int:
        """Whole blocks of a prompt that came before."""
        text = json.dumps(messages)
        found = isl // BLOCK * BLOCK if text in self.seen else 0
        self.seen.add(text)
        return found


def listing(*models: str, length: int | None = None) -> Answer:
    """A list of models."""
    served = [{"id": model, "max_model_len": length} for model in models]
    return Answer(body=json.dumps({"object": "list", "data": served}).encode())


def refused(status: int, message: str) -> Answer:
    """A refusal in words."""
    return Answer(status=status, body=json.dumps({"error": {"message": message}}).encode())


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, not for ever."""

    async def guarded() -> None:
        with anyio.fail_after(GUARD_S):
            await main()

    anyio.run(guarded)


def probed(
    serve: Callable[[Request], Answer],
    path: str = "",
    *,
    ssl_context: ssl.SSLContext | None = None,
    api: str = "chat",
    **endpoint: Any,
) -> tuple[Findings, ScriptedServer]:
    """What is found out about a server, and its log."""
    server = ScriptedServer(serve, ssl_context=ssl_context)
    found: list[Findings] = []

    async def main() -> None:
        async with server:
            url = api_url(server.url + path, APIS[api])
            found.append(await probe(Endpoint((url,), api=APIS[api], **endpoint)))

    run(main)
    return found[0], server


def finding(serve: Callable[[Request], Answer], name: str, **endpoint: Any) -> Finding:
    """One thing that is found out about a server."""
    return probed(serve, **endpoint)[0][name]


def noes(findings: Findings) -> set[str]:
    """What is not as one would wish it."""
    return {each.name for each in findings.findings if each.ok is False}


def text(findings: Findings) -> str:
    """The report as it is printed."""
    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(probe_report(findings))
    return capture.get()


def test_nothing_against_it() -> None:
    """A server like vLLM with Qwen3's template is usable, and there is no no."""
    found, server = probed(Served())
    assert found.usable
    assert noes(found) == set()
    assert {each.name for each in found.findings if each.ok is None} == {"tls"}
    assert found["address"].value == f"{server.url}/v1/chat/completions"
    assert found["model"].value == MODEL
    assert found["cached_tokens"].value == "512 of 608 found again"
    assert found["ignore_eos"].value == "accepted, 24 of 24"
    assert found["output_length"].value == "24 of 24"
    assert found["context"].value == 32_768
    assert found["template"].value == "8 a prompt, 5 a system message, 10 a pair"
    assert found["tokens_per_word"].value == 1.0
    assert found["history"].value == "kept"
    assert isinstance(found["round_trip_s"].value, float)


def test_few_small_requests() -> None:
    """A probe sends a few dozen requests at most, of a few words and tokens each."""
    _, server = probed(Served())
    bodies = [json.loads(seen.body) for seen in server.requests if seen.path.endswith("ions")]
    assert len(server.requests) <= 36
    assert max(len(json.dumps(body)) for body in bodies) < 4_000
    limits = [body.get("max_tokens") or body.get("max_completion_tokens") for body in bodies]
    assert max(limits) == 24


@pytest.mark.parametrize("refusal", [None, refused(401, "no"), refused(500, "no")])
def test_every_finding_in_order(refusal: Answer | None) -> None:
    """Whatever a server does, each name is told once, in order, and each no has its reason."""
    found, _ = probed(Served(refusal=refusal))
    assert tuple(each.name for each in found.findings) == NAMES
    assert all(each.why for each in found.findings if each.ok is False)


def test_strict_server() -> None:
    """A server that refuses unknown fields is usable; what it refuses and what follows is told."""
    found, _ = probed(Served(known={"stream_options"}))
    assert found.usable
    assert noes(found) == {"ignore_eos", "min_tokens", "max_completion_tokens", "output_length"}
    assert found["stream_options"].ok
    assert "422" in found["ignore_eos"].why
    assert found["output_length"].value == f"{OWN_LENGTH} of 24"
    assert "length_not_controlled" in found["output_length"].why
    assert found.worth_knowing == 4


def test_field_without_effect() -> None:
    """A server that takes ignore_eos and ignores it is told from one that honours it."""
    found, _ = probed(Served(holds=()))
    assert noes(found) == {"ignore_eos", "min_tokens", "output_length"}
    assert found["ignore_eos"].value == f"accepted, {OWN_LENGTH} of 24"
    assert "without effect" in found["ignore_eos"].why


def test_effect_that_does_not_show() -> None:
    """Where the model's own answer is as long, it is said that the field's effect did not show."""
    told = finding(Served(own_length=100), "ignore_eos")
    assert told.ok
    assert "as long without it" in told.why
    assert finding(Served(), "ignore_eos").why == ""


def test_no_usage() -> None:
    """A server that counts nothing is usable; what depends on counts is not known, not a no."""
    found, _ = probed(Served(counts=False))
    assert found.usable
    assert noes(found) == {"usage", "template"}
    assert "usage" in found["template"].why
    unknown = ("cached_tokens", "output_length", "tokens_per_word", "history")
    assert [found[name].ok for name in unknown] == [None] * 4
    assert found["ignore_eos"].ok


def test_no_cached_tokens() -> None:
    """Where no cached tokens are sent, vLLM's option for it is named."""
    told = finding(Served(caches=False), "cached_tokens")
    assert told.ok is False
    assert "--enable-prompt-tokens-details" in told.why


def test_nothing_found_again() -> None:
    """A server that says it found nothing of a repeated prompt is told from one that is silent."""

    class Forgetful(Served):
        def _found(self, messages: list[dict[str, str]], isl: int) -> int:
            return 0

    told = finding(Forgetful(), "cached_tokens")
    assert told.ok is False
    assert told.value == "0 of 608 found again"


def test_no_stream() -> None:
    """A server that answers in JSON is not usable, and its words are in the reason."""
    found, _ = probed(Served(streams=False))
    assert not found.usable
    assert found["streaming"].ok is False
    assert "application/json" in found["streaming"].why
    assert "streaming" in found.verdict


@pytest.mark.parametrize(
    ("forgets", "value"), [("nothing", "kept"), ("old", "rewritten"), ("all", "left out")]
)
@pytest.mark.parametrize("per_word", [1.0, 1.3])
def test_history(forgets: str, value: str, per_word: float) -> None:
    """A template that drops turns of the assistant is found out, however words are counted."""
    told = finding(Served(forgets=forgets, per_word=per_word), "history")
    assert told.value == value
    assert told.ok is (value == "kept")


def test_costly_words() -> None:
    """Words of more than one token are told, with what becomes of it; the rest is as it was."""
    found, _ = probed(Served(per_word=1.3))
    assert found.usable
    assert noes(found) == {"tokens_per_word"}
    assert found["tokens_per_word"].value == 1.3
    assert "compensated" in found["tokens_per_word"].why


def test_refused_system_role() -> None:
    """A template without a system role is told beside what it costs."""
    found, _ = probed(Served(system=False))
    assert noes(found) == {"template"}
    assert found["template"].value == "8 a prompt, 10 a pair"
    assert "system role" in found["template"].why


def test_context_not_said() -> None:
    """A context that the server does not tell is not known, and the option for it is named."""
    told = finding(Served(length=None), "context")
    assert told.ok is None
    assert "--context" in told.why


def test_no_extras() -> None:
    """A server without /metrics and /tokenize is usable, and both are told."""
    found, _ = probed(Served(extras=False))
    assert found.usable
    assert noes(found) == {"metrics", "tokenize"}
    assert "/metrics: HTTP 404" in found["metrics"].why


@pytest.mark.parametrize(("key", "value"), [(None, "missing"), ("sk-wrong-key", "refused")])
@pytest.mark.parametrize("status", [401, 403])
def test_key(status: int, key: str | None, value: str) -> None:
    """A key that is missing is told from one that is refused, and nothing more is tried."""
    found, server = probed(Served(refusal=refused(status, "Unauthorized")), api_key=key)
    assert not found.usable
    assert noes(found) == {"auth"}
    assert found["auth"].value == value
    assert found["usage"].value == NOT_TRIED
    assert len(server.requests) == 2


@pytest.mark.parametrize("models", [("a", "b"), ()], ids=["listed", "no-list"])
def test_unknown_model(models: tuple[str, ...]) -> None:
    """A model that isn't served is no wrong address, and those that are served are named."""
    found, _ = probed(Served(models=models), model="mine")
    assert not found.usable
    assert noes(found) == {"model"}
    assert found["address"].ok
    assert ", ".join(models) in found["model"].why
    assert "does not exist" in found["model"].why


def test_unlisted_model() -> None:
    """A model that is served though not listed is fine."""

    class Tolerant(Served):
        def _chat(self, body: dict[str, Any]) -> Answer:
            return super()._chat({**body, "model": MODEL})

    told = finding(Tolerant(), "model", model="mine")
    assert told.ok
    assert "not listed" in told.why


@pytest.mark.parametrize(
    ("base", "path", "works"),
    [
        ("", "", "/chat/completions"),
        ("/v1", "/chat/completions", "/v1/chat/completions"),
        ("/api/v3", "/api/v3", "/api/v3/chat/completions"),
    ],
)
def test_other_address(base: str, path: str, works: str) -> None:
    """Where the address answers 404, the one that works is told, and all the rest of it."""
    found, server = probed(Served(base=base, extras=False), path)
    assert found["address"].value == server.url + works
    assert found["address"].ok is False
    assert not found.usable
    assert noes(found) == {"address", "metrics", "tokenize"}
    # What is told is an address that is taken as it is.
    assert api_url(server.url + works) == server.url + works


def test_no_such_path() -> None:
    """A server that has the API nowhere is told so after two attempts."""
    found, server = probed(lambda _: Answer(status=404, body=b"{}"))
    assert noes(found) == {"address"}
    assert "404" in found["address"].why
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refusals(status: int) -> None:
    """A server that refuses every prompt is not usable, in its own words."""
    found, _ = probed(Served(refusal=refused(status, "overworked")))
    assert noes(found) == {"streaming"}
    assert f"HTTP {status}: overworked" in found.verdict


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>", headers={"content-type": "text/html"}),
        Answer(body=b"\xff\xfe"),
        Answer(script=[(0.0, b"data: [1]\n\n")]),
        Answer(script=[(0.0, done())]),
        Answer(status=None, body=b"", close_after=True),
        Answer(status=None, body=b"no http\r\n\r\n", close_after=True),
        Answer(status=307, body=b"", headers={"location": "/"}),
        Answer(body=b"x", headers={"content-encoding": "gzip"}),
    ],
    ids=["html", "binary", "list", "empty", "closed", "no-http", "redirect", "no-gzip"],
)
def test_nonsense(answer: Answer) -> None:
    """Whatever a server answers to everything, nothing is raised, and it is not usable."""
    found, _ = probed(lambda _: answer)
    assert not found.usable
    assert noes(found)
    assert text(found)


def test_nothing_listens() -> None:
    """Where nobody answers the address is to blame, with the cause."""

    async def main() -> None:
        async with ScriptedServer(lambda _: None) as server:
            url = api_url(server.url)
        found = await probe(Endpoint((url,)))
        assert noes(found) == {"address"}
        assert "refused" in found["address"].why
        assert found["address"].value == url

    run(main)


def serving(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


def test_untrusted_certificate(certificate: tuple[Path, Path]) -> None:
    """A self-signed certificate is told as that, with both options that help."""
    found, _ = probed(Served(), ssl_context=serving(certificate))
    assert not found.usable
    assert noes(found) == {"tls"}
    assert "certificate" in found["tls"].why
    assert "--ca" in found["tls"].why
    assert "--insecure" in found["tls"].why


def test_trusted_certificate(certificate: tuple[Path, Path]) -> None:
    """A certificate that the user trusts is fine."""
    found, _ = probed(Served(), ssl_context=serving(certificate), ca=str(certificate[0]))
    assert found.usable
    assert found["tls"].ok


def test_unchecked_certificate(certificate: tuple[Path, Path]) -> None:
    """A certificate that isn't checked does not count as trusted, and hinders nothing."""
    found, _ = probed(Served(), ssl_context=serving(certificate), insecure=True)
    assert found.usable
    assert found["tls"].ok is None


def test_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy from the environment is named without its password, and used."""
    asked: list[Request] = []

    def relay(request: Request) -> Answer:
        asked.append(request)
        path = request.path.removeprefix("http://model.test")
        return Served()(Request(request.method, path, request.headers, request.body, 0, 0))

    async def main() -> None:
        async with ScriptedServer(relay) as server:
            address = server.url.removeprefix("http://")
            monkeypatch.setenv("http_proxy", f"http://me:hidden-word@{address}")
            monkeypatch.setenv("no_proxy", "")
            found = await probe(Endpoint((api_url("http://model.test"),)))
            assert found["proxy"].value == address
            assert found["proxy"].ok is False
            assert found.usable
            assert "hidden-word" not in json.dumps(probe_value(found))

    run(main)
    assert asked


@pytest.mark.parametrize("status", [400, 401, 500])
def test_secrets(status: int) -> None:
    """What the user keeps secret is in no output, not even where the server repeats it."""

    def serve(request: Request) -> Answer:
        told = [*request.headers.values(), request.path, "sk-secret-1", "team-secret-2"]
        return refused(status, " ".join(told))

    found, server = probed(
        serve,
        "/v1?api-key=query-secret-3",
        api_key="sk-secret-1",
        headers=(("x-team", "Token team-secret-2"),),
    )
    assert "sk-secret-1" in str(server.requests)
    assert "query-secret-3" in str(server.requests)
    for told in (json.dumps(probe_value(found)), text(found), repr(found), found.verdict):
        assert "secret-" not in told


@pytest.mark.parametrize("api", ["responses", "messages", "completions"])
def test_inapplicable_fields(api: str) -> None:
    """What an API does not have is neither tried nor a no."""
    paths = {f"/v1{APIS[api].path}"}
    events: dict[str, list[dict[str, Any]]] = {
        "responses": [
            {"type": "response.output_text.delta", "delta": " word"},
            {"type": "response.completed", "response": {"status": "completed"}},
        ],
        "messages": [
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": " word"}},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        ],
        "completions": [{"choices": [{"text": " word", "finish_reason": "length"}]}],
    }
    script: list[tuple[float, Event]] = [
        (0.0, b"data: %b\n\n" % json.dumps(each).encode()) for each in events[api]
    ]
    found, server = probed(
        lambda seen: Answer(script=script) if seen.path in paths else listing(MODEL), api=api
    )
    assert found.usable
    assert found["max_completion_tokens"].ok is None
    assert not any(b"max_completion_tokens" in seen.body for seen in server.requests)
    if api == "completions":
        assert found["stream_options"].ok
        assert found["history"].ok is None
    else:
        assert found["stream_options"].ok is None
        assert not any(b"stream_options" in seen.body for seen in server.requests)


def test_fields_of_the_user() -> None:
    """The user's fields are in every prompt of the probe, but for those that are being tried."""
    found, server = probed(Served(), fields={"ignore_eos": False, "top_k": 5})
    bodies = [json.loads(seen.body) for seen in server.requests if seen.path.endswith("ions")]
    assert {body["top_k"] for body in bodies} == {5}
    assert [body.get("ignore_eos") for body in bodies].count(True) == 1
    assert found["ignore_eos"].ok


def test_value() -> None:
    """The JSON holds every finding by name with value, verdict and reason."""
    found, _ = probed(Served(extras=False))
    value = json.loads(json.dumps(probe_value(found)))
    assert tuple(value["findings"]) == NAMES
    assert value["usable"] is True
    assert value["worth_knowing"] == 2
    assert value["verdict"] == found.verdict
    assert value["findings"]["usage"] == {"value": "28 in, 24 out", "ok": True, "why": ""}


def test_report() -> None:
    """The table has a mark and a name for each thing that was tried, and the reasons."""
    found, _ = probed(Served(caches=False, models=("[red]m",)))
    lines = text(found).splitlines()
    assert [line.split()[1] for line in lines[: len(NAMES)]] == list(NAMES)
    marks = {line.split()[1]: line[0] for line in lines[: len(NAMES)]}
    assert (marks["usage"], marks["cached_tokens"], marks["tls"]) == ("✓", "✗", "–")
    assert "[red]m" in text(found)
    assert lines[-1] == f"Verdict: {found.verdict}"


def test_report_of_what_was_not_tried() -> None:
    """What could not be tried takes one line of the table."""
    found, _ = probed(Served(refusal=refused(401, "no")))
    tried = [each for each in found.findings if each.value != NOT_TRIED]
    assert f"– {len(NAMES) - len(tried)} more not tried" in text(found)
    assert "ignore_eos" not in text(found)


def test_simulated() -> None:
    """A simulated server is named as such before anything else."""

    def serve(request: Request) -> Answer:
        answer = Served()(request)
        if not request.path.endswith("/models"):
            return answer
        return Answer(body=answer.body, headers={"x-simulated-server": "demo"})

    found, _ = probed(serve)
    assert text(found).startswith("SIMULATED SERVER (demo)")
    assert probe_value(found)["simulated"] == "demo"
