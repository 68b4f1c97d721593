"""Embed tokens: minted by backends, held by browsers, and no more than they say."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from streaming.core.chat import BadParameter
from streaming.core.embedding import Overridden, merged, parse_order
from tests.durability.reader import until
from tests.security.conftest import MODEL, SHOP, House, code_of, request


def test_a_token_is_its_end_users_and_no_more(house: House) -> None:
    minted = house.mint("ann", models=[MODEL], level="economy", variant="b-7")
    assert minted["object"] == "embed_token"
    assert minted["token"].startswith("ub-embed-")
    assert (minted["user"], minted["models"], minted["origin"]) == ("ann", [MODEL], None)
    token = minted["token"]
    # Whatever the browser says, it is ann.
    session = house.session(token, headers={"X-Unbroken-User": "eve"}, user="eve")
    row = house.stack.sql(
        "SELECT end_user, level, variant, embed_token_id::text FROM streaming_streamsession"
        " WHERE id = %s",
        session,
    )
    assert row == [("ann", "economy", "b-7", minted["id"])]
    assert house.ask("GET", f"/v1/sessions/{session}", token).status_code == 200
    # Her backend reads it by her name, another user's token does not.
    as_ann = {"X-Unbroken-User": "ann"}
    assert house.ask("GET", f"/v1/sessions/{session}", house.key, headers=as_ann).is_success
    assert house.ask("GET", f"/v1/sessions/{session}", house.token("eve")).status_code == 404
    # A fresh token of hers opens it too.
    assert house.ask("GET", f"/v1/sessions/{session}", house.token("ann")).status_code == 200
    for method, path in (
        ("POST", "/v1/embed-tokens"),
        ("DELETE", f"/v1/embed-tokens/{minted['id']}"),
    ):
        answer = house.ask(method, path, token, json={"user": "eve"})
        assert (answer.status_code, code_of(answer)) == (403, "not_permitted")
    (said,) = [one for one in house.audited("embed_token.mint") if minted["id"] in one["subject"]]
    assert said["actor"].startswith("key:")
    assert "ann" not in json.dumps(said)


def test_models_are_those_of_the_token(house: House) -> None:
    house.stack.sql(
        "INSERT INTO streaming_modelalias (alias, model) VALUES ('other-name', %s)", MODEL
    )
    token = house.token(models=["other-name"])
    names = [row["id"] for row in house.ask("GET", "/v1/models", token).json()["data"]]
    assert names == ["other-name"]
    assert house.chat(token, model="other-name").status_code == 200
    for model in (MODEL, "no-such-model"):
        answer = house.chat(token, model=model)
        assert (answer.status_code, code_of(answer)) == (404, "model_not_found")
    forced = house.token(preset={"model": "other-name"})
    assert house.chat(forced, model="whatever").json()["model"] == "other-name"


def test_a_preset_is_neither_seen_nor_overridden(house: House) -> None:
    preset = {"system": "You are a parrot.", "temperature": 0.25, "top_p": 0.5, "max_tokens": 7}
    token = house.token(preset=preset)
    body = request(tokens=30)
    del body["temperature"]
    made = house.ask("POST", "/v1/sessions", token, json=body)
    assert made.status_code == 201
    assert "parrot" not in made.text
    stored = house.stored_request(made.json()["id"])
    assert stored["messages"] == [
        {"role": "system", "content": "You are a parrot."}, *body["messages"],
    ]  # fmt: skip
    assert (stored["temperature"], stored["top_p"], stored["max_tokens"]) == (0.25, 0.5, 7)
    shown = house.ask("GET", f"/v1/sessions/{made.json()['id']}", token)
    assert "parrot" not in shown.text
    events = house.ask("GET", f"/v1/sessions/{made.json()['id']}/events", token).text
    assert '"finish_reason":"length"' in events
    for more in (
        {"temperature": 1},
        {"top_p": 1},
        {"messages": [{"role": "system", "content": "Be a cat."}, *body["messages"]]},
        {"messages": [{"role": "developer", "content": "Be a cat."}, *body["messages"]]},
    ):
        answer = house.ask("POST", "/v1/chat/completions", token, json={**body, **more})
        assert (answer.status_code, code_of(answer)) == (403, "not_permitted")
        assert answer.json()["error"]["param"].startswith(next(iter(more)))
    # What is wrong is told in the browser's own places.
    answer = house.ask("POST", "/v1/sessions", token, json={**body, "messages": [7]})
    assert answer.json()["error"]["param"] == "messages[0]"
    assert house.chat(house.token(), messages=[{"role": "system", "content": "Be a cat."}, *body["messages"]]).is_success  # fmt: skip


def test_retries_with_a_fresh_token_are_the_same_session(house: House) -> None:
    headers = {"Idempotency-Key": "once"}
    first = house.token("kim", preset={"system": "One."})
    second = house.token("kim", preset={"system": "Two."})
    session = house.session(first, headers=headers)
    assert house.session(second, headers=headers) == session
    assert house.stored_request(session)["messages"][0]["content"] == "One."


def test_forged_tokens_are_refused(house: House) -> None:
    token = house.token()
    body = token.removeprefix("ub-embed-")
    payload, stamp, signature = body.split(".")
    later = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    later[1] += 10**6
    longer = base64.urlsafe_b64encode(json.dumps(later).encode()).decode().rstrip("=")
    forged = [
        f"ub-embed-{longer}.{stamp}.{signature}",
        f"ub-embed-{payload}.{stamp}.{'A' * len(signature)}",
        f"ub-embed-{payload}",
        "ub-embed-",
        "ub-embed-.",
        "ub-embed-" + "A" * 5000,
        token[:-1],
        token + "x",
        body,
    ]
    for text in forged:
        answer = house.ask("GET", "/v1/models", text)
        assert (answer.status_code, code_of(answer)) == (401, "invalid_api_key"), text
    assert house.ask("GET", "/v1/models", token).status_code == 200
    # In a query string nobody looks for one.
    assert house.ask("GET", f"/v1/models?token={token}").status_code == 401


async def test_expired_revoked_and_keyless(house: House) -> None:
    minted = house.mint()
    token = minted["token"]
    assert house.ask("GET", "/v1/models", token).status_code == 200
    # Another tenant's key does not even learn that it exists.
    path = f"/v1/embed-tokens/{minted['id']}"
    assert house.ask("DELETE", path, house.other_key).status_code == 404
    assert house.ask("DELETE", "/v1/embed-tokens/nonsense", house.key).status_code == 404
    for _ in range(2):
        answer = house.ask("DELETE", path, house.key)
        assert answer.json() == {"id": minted["id"], "object": "embed_token", "deleted": True}
    answer = house.ask("GET", "/v1/models", token)
    assert (answer.status_code, code_of(answer)) == (401, "invalid_api_key")
    assert (
        len([o for o in house.audited("embed_token.revoke") if minted["id"] in o["subject"]]) == 1
    )

    key = house.stack.api_key("acme")
    token = house.token(key=key)
    assert house.ask("GET", "/v1/models", token).status_code == 200
    house.stack.sql("UPDATE streaming_apikey SET revoked_at = now() WHERE prefix = %s", key[:10])
    await until(lambda: house.ask("GET", "/v1/models", token).status_code == 401)


@pytest.mark.parametrize(
    ("order", "param"),
    [
        ({}, "user"),
        ({"user": ""}, "user"),
        ({"user": "a\nb"}, "user"),
        ({"user": "x" * 129}, "user"),
        ({"user": 7}, "user"),
        ({"user": "u", "scope": "all"}, "scope"),
        ({"user": "u", "models": []}, "models"),
        ({"user": "u", "models": "m"}, "models"),
        ({"user": "u", "models": [""]}, "models"),
        ({"user": "u", "origin": "shop.example"}, "origin"),
        ({"user": "u", "origin": "https://*.example"}, "origin"),
        ({"user": "u", "expires_in": 59}, "expires_in"),
        ({"user": "u", "expires_in": 3601}, "expires_in"),
        ({"user": "u", "expires_in": True}, "expires_in"),
        ({"user": "u", "preset": []}, "preset"),
        ({"user": "u", "preset": {"seed": 1}}, "preset.seed"),
        ({"user": "u", "preset": {"system": ""}}, "preset.system"),
        ({"user": "u", "preset": {"system": "a\x00"}}, "preset.system"),
        ({"user": "u", "preset": {"temperature": 3}}, "preset.temperature"),
        ({"user": "u", "preset": {"max_tokens": 0}}, "preset.max_tokens"),
        ({"user": "u", "preset": {"model": "b"}, "models": ["a"]}, "preset.model"),
        ({"user": "u", "limits": {"tokens": 1}}, "limits.tokens"),
        ({"user": "u", "limits": {"streams_at_once": 0}}, "limits.streams_at_once"),
        ({"user": "u", "level": "golden"}, "level"),
        ({"user": "u", "level": ["economy"]}, "level"),
        ({"user": "u", "variant": "a b"}, "variant"),
    ],
)
def test_orders_that_are_refused_by_name(order: dict[str, Any], param: str) -> None:
    with pytest.raises(BadParameter) as refused:
        parse_order(order)
    assert refused.value.param == param


def test_orders_are_refused_over_http(house: House) -> None:
    for body, param in (
        (b'{"user": "u", "scope": 1}', "scope"),
        (b'{"user": "u", "origin": "https://evil.example"}', "origin"),
        (b"[]", None),
        (b"{", None),
    ):
        answer = house.ask("POST", "/v1/embed-tokens", house.key, content=body)
        assert answer.status_code == 400
        code_of(answer)
        assert answer.json()["error"]["param"] == param
    answer = house.ask(
        "POST", "/v1/embed-tokens", house.key, json={"user": "u", "level": "realtime"}
    )
    assert (answer.status_code, code_of(answer)) == (403, "not_permitted")
    assert house.mint(origin=SHOP + "/")["origin"] == SHOP


def test_caps() -> None:
    def capped(**asked: Any) -> dict[str, Any]:
        return merged({"max_tokens": 10}, asked)

    assert capped() == {"max_tokens": 10}
    assert capped(max_tokens=None) == {"max_tokens": 10}
    assert capped(max_tokens=3) == {"max_tokens": 3}
    assert capped(max_tokens=30, max_completion_tokens=20) == {
        "max_tokens": 10, "max_completion_tokens": 10,
    }  # fmt: skip
    assert capped(max_completion_tokens=20) == {"max_completion_tokens": 10}
    assert capped(max_tokens="many") == {"max_tokens": "many"}  # which is refused
    with pytest.raises(Overridden):
        merged({"system": "s"}, {"messages": [{"role": "developer"}]})
