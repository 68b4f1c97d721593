"""What belongs to one tenant's end user, asked for by everybody else: as if it did not exist."""

from __future__ import annotations

import json
import re
from uuid import uuid4

import pytest
from websockets.asyncio.client import connect

from streaming.routing import http_urlpatterns
from tests.durability.reader import until
from tests.security.conftest import House, request

SESSION_PATHS = sorted(
    str(route.pattern) for route in http_urlpatterns if "session_id" in str(route.pattern)
)
OPEN = ("healthz", "readyz", "metrics", "v1/openapi.json")
"""What is answered without a credential."""
SCHEMES = ("Bearer ", "bearer  ", "Basic ", "")


@pytest.fixture(scope="module")
def belongings(_house: House) -> tuple[str, dict[str, dict[str, str]]]:
    """A session of acme's ann, and what each stranger has to show."""
    house = _house
    session = house.session(house.token("ann"), headers={"Idempotency-Key": "hers"})
    as_ann = {"X-Unbroken-User": "ann"}
    globex = house.mint("ann", key=house.other_key)
    strangers = {
        "another tenant": {"Authorization": f"Bearer {house.other_key}"},
        "another tenant, her name": {"Authorization": f"Bearer {house.other_key}", **as_ann},
        "another tenant's ann": {"Authorization": f"Bearer {globex['token']}"},
        "the same tenant, nobody": {"Authorization": f"Bearer {house.key}"},
        "the same tenant, a case apart": {
            "Authorization": f"Bearer {house.key}", "X-Unbroken-User": "Ann",
        },
        "another user": {"Authorization": f"Bearer {house.token('eve')}"},
        "another user, her name": {"Authorization": f"Bearer {house.token('eve')}", **as_ann},
    }  # fmt: skip
    return session, strangers


@pytest.mark.parametrize("path", SESSION_PATHS)
def test_a_session_of_somebody_else_is_no_session(
    house: House, belongings: tuple[str, dict[str, dict[str, str]]], path: str
) -> None:
    session, strangers = belongings
    unknown = str(uuid4())

    body = {"reconnects": 1} if path.endswith("report") else {"seq": 1}

    def answer(method: str, session_id: str, headers: dict[str, str]) -> tuple[int, str]:
        url = "/" + re.sub("<[^>]+>", session_id, path)
        response = house.ask(method, url, headers=headers, json=body)
        return response.status_code, response.text.replace(session_id, "ID")

    for name, headers in strangers.items():
        for method in ("GET", "POST", "DELETE"):
            seen = answer(method, session, headers)
            assert seen == answer(method, unknown, headers), (name, method)
            assert seen[0] in (404, 405), (name, method)
    other = house.ask("POST", "/v1/sessions", house.other_key, json=request()).json()
    for token in (other["stream_token"], "x", "é", house.key):
        url = "/" + re.sub("<[^>]+>", session, path)
        status = house.ask("GET", url, params={"stream_token": token}).status_code
        assert status in (401, 405), token


@pytest.mark.parametrize("route", [str(route.pattern) for route in http_urlpatterns])
def test_nothing_without_a_credential(house: House, route: str) -> None:
    if route in OPEN:
        return
    url = "/" + re.sub("<[^>]+>", str(uuid4()), route)
    for method in ("GET", "POST", "DELETE", "PUT", "HEAD"):
        assert house.ask(method, url, json={}).status_code in (401, 405)
        for scheme in SCHEMES:
            headers = {"Authorization": scheme + "ub-live-nobody"}
            assert house.ask(method, url, json={}, headers=headers).status_code in (401, 405)
    for name in ("key", "api_key", "token", "access_token", "authorization"):
        answer = house.ask("POST", url, params={name: house.key}, json={})
        assert answer.status_code in (401, 405), name


def test_idempotency_keys_are_each_users_own(
    house: House, belongings: tuple[str, dict[str, dict[str, str]]]
) -> None:
    session, strangers = belongings
    for name, headers in strangers.items():
        assert house.session(None, headers={**headers, "Idempotency-Key": "hers"}) != session, name
    again = house.session(house.token("ann"), headers={"Idempotency-Key": "hers"})
    assert again == session


async def test_over_the_socket(
    house: House, belongings: tuple[str, dict[str, dict[str, str]]]
) -> None:
    session, strangers = belongings
    unknown = str(uuid4())
    for name, headers in strangers.items():
        async with connect(house.socket_url, additional_headers=headers) as socket:
            for type_ in ("resume", "ack", "stop"):
                for more in ({}, {"user": "ann"} if "her name" in name else {}):
                    told = []
                    for one in (session, unknown):
                        message = {"type": type_, "session": one, "seq": 1, "ref": type_, **more}
                        await socket.send(json.dumps(message))
                        told.append((await socket.recv()).replace(one, "ID"))  # type: ignore[arg-type]
                    assert told[0] == told[1], (name, type_)
                    assert json.loads(told[0])["error"]["code"] == "not_found"


async def test_hers_is_still_whole(
    house: House, belongings: tuple[str, dict[str, dict[str, str]]]
) -> None:
    session, _ = belongings
    token = house.token("ann")
    await until(
        lambda: house.ask("GET", f"/v1/sessions/{session}", token).json()["state"] == "completed"
    )
