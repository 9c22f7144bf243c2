"""Rules of an endpoint: its addresses, its model, and how its chat template is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import httpx
import pytest
from scripted import MODEL, Again, Answer, Request, ScriptedServer, c, done, fin, role, usage

from agentreplay.client.calibrate import SIMULATED_HEADER, Calibration, calibrate
from agentreplay.client.endpoint import APIS, Endpoint, api_url, open_client, page
from agentreplay.prompt.messages import Template
from agentreplay.sim import virtual

GUARD_S = 20.0
"""Bounds a test that hangs; nothing is measured with it."""

CHAT = "/v1/chat/completions"
MODELS = "/v1/models"
FORCED = {"stream_options": {"include_usage": True}, "ignore_eos": True}


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, not for ever."""

    async def guarded() -> None:
        with anyio.fail_after(GUARD_S):
            await main()

    anyio.run(guarded)


def calibrated(
    chat: Callable[[Request], Answer],
    models: Answer | None = None,
    **endpoint: Any,
) -> tuple[Calibration, ScriptedServer]:
    """What is found out about a server that answers prompts like *chat*, and its log.

    Without *models* it has one model.
    """
    server = ScriptedServer(lambda request: chat(request) if request.path == CHAT else models)
    found: list[Calibration] = []

    async def main() -> None:
        async with server:
            known = Endpoint((api_url(server.url),), **endpoint)
            async with open_client(known, time.monotonic_ns) as client:
                found.append(await calibrate(known, client, time.monotonic_ns))

    run(main)
    return found[0], server


def bodies(server: ScriptedServer) -> list[dict[str, Any]]:
    """What was asked of chat completions."""
    return [json.loads(seen.body) for seen in server.requests if seen.path == CHAT]


def streamed(isl: int | None) -> Answer:
    """One token, and the count of the prompt where there is one."""
    counts = [] if isl is None else [(0.0, usage(isl, 1))]
    return Answer(script=[(0.0, role()), (0.0, c(1)), (0.0, fin("length")), *counts, (0.0, done())])


def refused(status: int, message: str) -> Answer:
    """A refusal in words."""
    return Answer(status=status, body=json.dumps({"error": {"message": message}}).encode())


def counted(
    request: Request, per_word: float = 1.0, per_message: int = 5, per_prompt: int = 3
) -> int:
    """The tokens of a prompt with a template like Qwen3's."""
    messages = json.loads(request.body)["messages"]
    words = sum(round(per_word * len(message["content"].split())) for message in messages)
    return words + per_message * len(messages) + per_prompt


def like_qwen(request: Request) -> Answer:
    """One token, and the prompt counted with a template like Qwen3's."""
    return streamed(counted(request))


def listing(body: object, headers: Mapping[str, str] | None = None) -> Answer:
    """A list of models."""
    return Answer(body=json.dumps(body).encode(), headers=dict(headers or {}))


def test_calibration() -> None:
    """A template of 5 tokens a message and 3 a prompt is found, by requests of one token."""
    found, server = calibrated(like_qwen)
    assert found.failure is None
    assert found.dialect.template == Template(prompt=8, system=5, pair=10)
    assert found.measured
    assert found.dialect.model == MODEL
    assert found.dialect.fields == FORCED
    assert found.simulated is None
    asked = bodies(server)
    assert [body["max_tokens"] for body in asked] == [1, 1, 1, 1]
    assert all(body["stream"] for body in asked)
    texts = [message["content"] for body in asked for message in body["messages"]]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("per_word", [1.0, 1.3, 2.0, 0.5])
def test_tokens_per_word(per_word: float) -> None:
    """A tokenizer that cuts words up shows, and leaves the template's own tokens as they are."""
    found, _ = calibrated(lambda request: streamed(counted(request, per_word)))
    assert found.failure is None
    template = found.dialect.template
    assert template.tokens_per_word == pytest.approx(per_word)
    assert (template.prompt, template.system, template.pair) == (8, 5, 10)


def test_template_without_cost() -> None:
    """A server that adds nothing is found to add nothing."""
    found, _ = calibrated(lambda request: streamed(counted(request, 1.0, 0, 0)))
    assert found.dialect.template == Template(prompt=0, system=0, pair=0)


@pytest.mark.parametrize(
    ("known", "fields"),
    [
        ({"stream_options"}, {"stream_options": {"include_usage": True}}),
        (set(), {}),
    ],
    ids=["ignore_eos", "all"],
)
def test_refused_fields_are_left_out(known: set[str], fields: dict[str, Any]) -> None:
    """A server that refuses fields it does not know gets none of them in the run."""

    def serve(request: Request) -> Answer:
        extra = json.loads(request.body).keys() - {
            "model",
            "messages",
            "stream",
            "max_tokens",
        }
        if extra - known:
            return Answer(status=422, body=b'{"detail": "Unexpected fields in the request"}')
        return like_qwen(request)

    found, _ = calibrated(serve)
    assert found.failure is None
    assert found.dialect.fields == fields
    assert found.dialect.template == Template(prompt=8, system=5, pair=10)


def test_refused_system_role() -> None:
    """A template that refuses the system role gets no system message in the run."""

    def serve(request: Request) -> Answer:
        if b'"system"' in request.body:
            return refused(400, "System role not supported")
        return like_qwen(request)

    found, _ = calibrated(serve)
    assert found.failure is None
    assert found.dialect.template == Template(prompt=8, system=None, pair=10)


def test_no_usage() -> None:
    """A server that counts nothing can't be measured, which is said, and hinders nothing."""
    found, _ = calibrated(lambda _: streamed(None))
    assert found.failure is not None
    assert "usage" in found.failure.message
    assert not found.measured
    assert found.dialect.template == Template()
    assert found.dialect.model == MODEL
    assert found.dialect.fields == FORCED


def test_no_usage_and_no_system_role() -> None:
    """The cause that is named is the missing count, not a refusal that is no hindrance."""

    def serve(request: Request) -> Answer:
        if b'"system"' in request.body:
            return refused(400, "System role not supported")
        return streamed(None)

    found, _ = calibrated(serve)
    assert found.failure is not None
    assert "usage" in found.failure.message


def test_token_without_text() -> None:
    """Usage measures the template also where the one token has no text, as a special token."""

    def serve(request: Request) -> Answer:
        return Answer(
            script=[(0.0, role()), (0.0, fin("length")), (0.0, usage(counted(request), 1))]
        )

    found, _ = calibrated(serve)
    assert found.failure is None
    assert found.dialect.template == Template(prompt=8, system=5, pair=10)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth"), (404, "http_4xx"), (429, "http_429"), (503, "http_5xx")]
)
def test_failures_are_told(status: int, kind: str) -> None:
    """A server that refuses every request gives a named failure, and the plain dialect."""
    found, _ = calibrated(lambda _: refused(status, "no"))
    assert found.failure is not None
    assert (found.failure.kind, found.failure.status) == (kind, status)
    assert found.dialect.template == Template()
    assert not found.measured


def test_only_chat_completions() -> None:
    """A server that knows no other path works."""
    found, server = calibrated(like_qwen, refused(404, "not here"))
    assert found.failure is None
    assert found.dialect.template == Template(prompt=8, system=5, pair=10)
    assert {body["model"] for body in bodies(server)} == {found.dialect.model}
    assert found.dialect.model


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", CHAT])
def test_paths_that_are_asked_for(suffix: str) -> None:
    """Whatever form the address has, the same two paths are asked for."""
    server = ScriptedServer(lambda request: like_qwen(request) if request.path == CHAT else None)

    async def main() -> None:
        async with server:
            endpoint = Endpoint((api_url(server.url + suffix),))
            async with open_client(endpoint, time.monotonic_ns) as client:
                await calibrate(endpoint, client, time.monotonic_ns)

    run(main)
    assert {(seen.method, seen.path) for seen in server.requests} == {
        ("GET", MODELS),
        ("POST", CHAT),
    }


@pytest.mark.parametrize(
    ("models", "model"),
    [
        ({"data": [{"id": "first"}, {"id": "second"}]}, "first"),
        ({"data": [{"id": 5}]}, "5"),
        ({"data": []}, "default"),
        ({"data": None}, "default"),
        ({"data": [{"name": "x"}]}, "default"),
        ({"data": ["x"]}, "default"),
        ({"models": []}, "default"),
        ([], "default"),
        ("text", "default"),
        (None, "default"),
    ],
)
def test_model_of_the_list(models: object, model: str) -> None:
    """Without a model's name the first of the list is asked for, if there is such a list."""
    found, server = calibrated(like_qwen, listing(models))
    assert found.dialect.model == model
    assert {body["model"] for body in bodies(server)} == {model}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>", headers={"content-type": "text/html"}),
        Answer(body=b"\xff\xfe\xfd"),
        Answer(body=b""),
        Answer(status=500, body=b"Internal Server Error"),
        Answer(status=None, body=b"", close_after=True),
        Answer(body=b"no gzip", headers={"content-encoding": "gzip"}),
    ],
    ids=["html", "binary", "empty", "500", "closed", "no-gzip"],
)
def test_no_list(answer: Answer) -> None:
    """A server without a list of models works."""
    found, _ = calibrated(like_qwen, answer)
    assert found.failure is None
    assert found.dialect.template == Template(prompt=8, system=5, pair=10)


def test_named_model() -> None:
    """A model that the user names is asked for, whatever the list says."""
    found, server = calibrated(like_qwen, model="mine")
    assert found.dialect.model == "mine"
    assert {body["model"] for body in bodies(server)} == {"mine"}


def test_simulated_server() -> None:
    """A simulated server says so, and that is kept."""
    headers = {SIMULATED_HEADER: "demo"}
    found, _ = calibrated(like_qwen, listing({"data": [{"id": "m"}]}, headers))
    assert found.simulated == "demo"


def test_without_calibration() -> None:
    """Where measuring is switched off, no prompt is sent, and nothing has failed."""
    found, server = calibrated(like_qwen, calibrate=False)
    assert bodies(server) == []
    assert found.failure is None
    assert not found.measured
    assert found.dialect.model == MODEL
    assert found.dialect.fields == FORCED


def test_fields_of_the_user() -> None:
    """The user's fields are in every body, those that measure the template included."""
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "ignore_eos": False}
    found, server = calibrated(like_qwen, fields=fields)
    assert found.dialect.fields == {**FORCED, **fields}
    assert bodies(server)
    assert [{name: body.get(name) for name in fields} for body in bodies(server)] == [fields] * 4


def test_api_key() -> None:
    """The key and further headers go with every request, and into no text about the endpoint."""
    headers = (("x-team", "t-secret"),)
    found, server = calibrated(like_qwen, api_key="sk-secret", headers=headers)
    assert {seen.headers["authorization"] for seen in server.requests} == {"Bearer sk-secret"}
    assert {seen.headers["x-team"] for seen in server.requests} == {"t-secret"}
    for value in (Endpoint(("http://host",), api_key="sk-secret", headers=headers), found):
        assert "secret" not in repr(value)
        assert "secret" not in str(value)


def test_no_key_no_header() -> None:
    """Without a key no authorization is sent; compression is never asked for."""
    _, server = calibrated(like_qwen, calibrate=False)
    (seen,) = server.requests
    assert "authorization" not in seen.headers
    assert seen.headers["accept-encoding"] == "identity"


class Silent(httpx.AsyncBaseTransport):
    """Answers requests for the list of models, and no others, ever."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            await anyio.sleep_forever()
        return httpx.Response(200, json={"data": [{"id": MODEL}]})


def test_silence() -> None:
    """Measuring a silent server ends, says so, and keeps what the user asked for."""

    async def main() -> Calibration:
        endpoint = Endpoint((api_url("host"),), fields={"temperature": 0})
        async with httpx.AsyncClient(transport=Silent()) as client:
            return await calibrate(endpoint, client, virtual.clock)

    found = virtual.run(main)
    assert found.failure is not None
    assert found.failure.kind == "timeout"
    assert found.dialect.model == MODEL
    assert found.dialect.template == Template()
    assert found.dialect.fields == {**FORCED, "temperature": 0}


def test_refused_connection_is_told() -> None:
    """Where nobody answers, the failure is named."""

    async def main() -> None:
        async with ScriptedServer(lambda _: None) as server:
            url = server.url
        endpoint = Endpoint((api_url(url),))
        async with open_client(endpoint, time.monotonic_ns) as client:
            found = await calibrate(endpoint, client, time.monotonic_ns)
        assert found.failure is not None
        assert found.failure.kind == "connect"

    run(main)


def test_tools_are_measured() -> None:
    """What a list of tools adds is told apart from what a prompt and a pair cost."""

    def serve(request: Request) -> Answer:
        body = json.loads(request.body)
        words = sum(len(message["content"].split()) for message in body["messages"])
        isl = words + 5 * len(body["messages"]) + 3
        isl += 123 if "tools" in body else 0
        isl += sum(19 for message in body["messages"] if "tool_calls" in message)
        return streamed(isl)

    found, server = calibrated(serve, tool_messages=True)
    assert found.dialect.template == Template(prompt=8, system=5, pair=29, head=123, tools=True)
    assert found.dialect.fields["tools"]
    assert found.dialect.fields["tool_choice"] == "none"
    pair = next(body for body in bodies(server) if len(body["messages"]) == 3)
    assert [message["role"] for message in pair["messages"]] == ["user", "assistant", "tool"]


def test_completions_are_measured_by_two_requests() -> None:
    """Without roles there is only what is added to a prompt, and what a word costs."""

    def serve(request: Request) -> Answer:
        prompt = json.loads(request.body)["prompt"]
        return streamed(1 + (len(prompt) if isinstance(prompt, list) else len(prompt.split())))

    for token_ids in (False, True):
        found, server = calibrated(serve, api=APIS["completions"], token_ids=token_ids)
        assert found.dialect.template.prompt == 1
        assert found.dialect.template.tokens_per_word == 1.0
        assert len(bodies(server)) == 2


def test_min_tokens_stands_in_for_a_refused_ignore_eos() -> None:
    """Where ignore_eos is refused and min_tokens is not, it forces the output's length."""

    def serve(request: Request) -> Answer:
        if b"ignore_eos" in request.body:
            return refused(400, "unknown field ignore_eos")
        return like_qwen(request)

    found, _ = calibrated(serve)
    assert found.dialect.min_tokens
    assert found.dialect.forces_output
    body = json.loads(found.dialect.body([b'{"role":"user","content":"x"}'], 77))
    assert (body["max_tokens"], body["min_tokens"]) == (77, 77)


def test_the_newer_name_of_the_limit_is_used_where_the_old_one_is_refused() -> None:
    """A server that refuses max_tokens is asked with max_completion_tokens."""

    def serve(request: Request) -> Answer:
        if b'"max_tokens"' in request.body:
            return refused(400, "max_tokens is not supported, use max_completion_tokens")
        return like_qwen(request)

    found, _ = calibrated(serve)
    assert found.failure is None
    body = json.loads(found.dialect.body([b'{"role":"user","content":"x"}'], 77))
    assert body["max_completion_tokens"] == 77
    assert "max_tokens" not in body


def test_a_page_without_end_is_given_up() -> None:
    """No page beside the API is read for long: what comes after 16 MB is not waited for."""
    endless = Answer(
        headers={"content-type": "application/json"}, script=[(0, Again(b"x" * 65536, None))]
    )

    async def main() -> None:
        async with ScriptedServer(lambda request: endless) as server:
            endpoint = Endpoint((api_url(server.url),))
            async with open_client(endpoint, lambda: 0) as client:
                with pytest.raises(httpx.ReadError, match="over 16 MB"):
                    await page(client, server.url + MODELS)

    run(main)
