"""Where an endpoint is: the addresses that people give."""

from __future__ import annotations

import pytest

from agentreplay.client.endpoint import APIS, Endpoint, api_url, beside, shown
from agentreplay.errors import AgentReplayError
from agentreplay.wire.api import Api


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://host:8000", "http://host:8000/v1/chat/completions"),
        ("http://host:8000/", "http://host:8000/v1/chat/completions"),
        ("http://host:8000/v1", "http://host:8000/v1/chat/completions"),
        ("http://host:8000/v1/", "http://host:8000/v1/chat/completions"),
        ("http://host/v1/chat/completions", "http://host/v1/chat/completions"),
        ("http://host/v1/chat/completions/", "http://host/v1/chat/completions"),
        ("host:8000", "http://host:8000/v1/chat/completions"),
        ("host/v1", "http://host/v1/chat/completions"),
        ("localhost", "http://localhost/v1/chat/completions"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1/chat/completions"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
        ("HTTPS://host/v1", "https://host/v1/chat/completions"),
        ("https://host/openai/v1", "https://host/openai/v1/chat/completions"),
        ("https://host/api", "https://host/api/v1/chat/completions"),
        ("https://host/x/chat/completions", "https://host/x/chat/completions"),
        ("https://host/v1?version=1", "https://host/v1/chat/completions?version=1"),
        ("http://host/v1#part", "http://host/v1/chat/completions"),
        ("unix:/run/x.sock", "unix://%2frun%2fx.sock/v1/chat/completions"),
        ("unix:///run/x.sock", "unix://%2frun%2fx.sock/v1/chat/completions"),
        ("unix:/run/X é:1.sock", "unix://%2frun%2f%58%20%c3%a9%3a1.sock/v1/chat/completions"),
        ("unix:/run/x.sock:/v1", "unix://%2frun%2fx.sock/v1/chat/completions"),
        ("unix:/run/x.sock:/a?b=1", "unix://%2frun%2fx.sock/a/v1/chat/completions?b=1"),
    ],
)
def test_api_url(given: str, url: str) -> None:
    """A host, its /v1 and the full path all lead to chat completions, and do so again."""
    assert api_url(given) == url
    assert api_url(url) == url


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://host", "http:///v1", "http://[::1", "http://host:port"]
)
def test_no_url(given: str) -> None:
    """What is no address is refused in words that show one."""
    with pytest.raises(AgentReplayError, match="http://host:port"):
        api_url(given)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://host:8000/v1/chat/completions", "http://host:8000/v1/models"),
        ("https://host/x/chat/completions", "https://host/x/models"),
        ("http://host/v1/chat/completions?version=1", "http://host/v1/models?version=1"),
    ],
)
def test_models_url(given: str, url: str) -> None:
    """The list of models lies beside chat completions."""
    assert beside(given, "/models") == url


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
def test_every_api_has_its_address(api: Api) -> None:
    """A host leads to each API below /v1, and the full address of one API to another's."""
    assert api_url("http://host", api) == f"http://host/v1{api.path}"
    assert api_url("http://host/v1/chat/completions", api) == f"http://host/v1{api.path}"
    assert beside(api_url("http://host", api), "/models") == "http://host/v1/models"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("http://h/v1?api_key=a%2Bbcdef", "http://h/v1?api_key=***"),
        ("http://h/v1?sig=1&version=2021-01", "http://h/v1?sig=***&version=2021-01"),
        ("http://me:word@h:8000/v1", "http://h:8000/v1"),
        ("http://h/v1", "http://h/v1"),
        ("unix://%2fa.sock/v1?api_key=abcdef", "unix:/a.sock:/v1?api_key=***"),
        ("unix://%2fa.sock", "unix:/a.sock"),
    ],
)
def test_no_secret_of_an_address_is_told(given: str, told: str) -> None:
    """Keys in the query are masked whatever they are encoded as, and nothing else is."""
    assert shown(given) == told


@pytest.mark.parametrize("repeated", ["a%2Bbcdef", "a+bcdef"])
def test_a_secret_is_masked_however_it_is_encoded(repeated: str) -> None:
    """A server may repeat a key as it stood in the address, or decoded."""
    endpoint = Endpoint(("http://h/v1/chat/completions?api_key=a%2Bbcdef",))
    assert endpoint.mask(f"no such key: {repeated}!") == "no such key: ***!"
