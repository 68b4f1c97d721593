"""What every cursor gets, and whose session it is: never a new generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from django.core import signing

from tests.durability.reader import until
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.events import Client, Reading, question, urls
from tests.stack import Stack

TOKENS = 12
END = TOKENS + 2  # the token that ends the answer, and the terminal record
WINDOW = 2.0


@dataclass
class Desk:
    """One gateway with an engine, for all tests of this module."""

    stack: Stack
    engine: SimulatorProcess
    key: str = ""
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, key: str | None = None) -> Client:
        return Client(urls(self.stack), self.key if key is None else key)


@pytest.fixture(scope="module")
def desk():
    with (
        SimulatorProcess("vllm", pace=60) as engine,
        Stack(
            engine_nodes=[f"a=vllm+{engine.url}"],
            env={
                "GRACE_SECONDS": "0.5",
                "RESUME_WINDOW": str(WINDOW),
                "MAX_FAILOVERS": "0",
                "NODE_WAIT_SECONDS": "1",
            },
        ) as stack,
    ):
        yield Desk(stack, engine, stack.api_key())


async def finished(client: Client, **parameters: Any) -> Reading:
    reading = await client.create(question("cursors", TOKENS), **parameters)
    return await client.read_on(reading)


async def answered(client: Client, reading: Reading, cursor: str, **how: Any) -> Reading:
    """One more connection, from any cursor."""
    start = int(cursor) if cursor.isdecimal() else 0
    again = Reading(reading.session_id, reading.messages, start)
    return await client.read(again, cursor=cursor, **how)


async def test_the_cursors_of_a_finished_session(desk):
    async with desk.client() as client:
        whole = await finished(client)
        whole.must_be_whole()
        assert whole.cursor == END
        old = await answered(client, whole, "0")
        assert old.text == whole.text
        assert [name for name, _ in old.ends] == ["done"]
        last_token = await answered(client, whole, str(END - 1))
        assert last_token.tokens == []
        assert last_token.ends == whole.ends
        end = await answered(client, whole, str(END))
        assert (end.last.status, end.last.body) == (204, None)
        beyond = await answered(client, whole, str(END + 1))
        assert error_of(beyond) == (409, "cursor_beyond_log")
        again = await answered(client, whole, str(END), query="?last_id=3")
        assert again.last.status == 204, "the header counts, as EventSource sends it by itself"
        attempts = desk.stack.sql(
            "SELECT count(*) FROM streaming_attempt WHERE session_id = %s", whole.session_id
        )
        assert attempts == [(1,)]


@pytest.mark.parametrize("cursor", ["-1", "+1", "1.0", "junk", "0x1", "1 2", "9" * 30, "NaN"])
async def test_junk_is_400(desk, cursor):
    async with desk.client() as client:
        whole = await finished(client)
        assert error_of(await answered(client, whole, cursor)) == (400, "invalid_request")


@pytest.mark.parametrize(
    "session_id", ["6f0d6c3e-6f0e-4d7a-9d6f-5a3f0f6a2b11", "nonsense", "%00", "0" * 400]
)
async def test_unknown_sessions(desk, session_id):
    async with desk.client() as client:
        assert error_of(await answered(client, Reading(session_id, []), "0")) == (404, "not_found")


async def test_the_sessions_of_others_are_told_from_none_by_nothing(desk):
    """Another tenant's, another end user's, one without a user, and the key without its user."""
    ada, bob = {"x-unbroken-user": "ada"}, {"x-unbroken-user": "bob"}
    paths = [("GET", ""), ("GET", "/events"), ("POST", "/stop"), ("POST", "/ack")]
    other_tenant = desk.stack.api_key("rivals")
    async with desk.client() as client, desk.client(other_tenant) as stranger:
        hers = await client.create(question("hers", TOKENS), headers=ada)
        nobodys = await client.create(question("nobody's", TOKENS))
        async with desk.client("ub-nonsense") as unknown:
            assert (await unknown.call("GET", f"/v1/sessions/{hers.session_id}"))[0] == 401
        for method, path in paths:
            body = {"seq": 1} if path == "/ack" else None

            async def ask(who: Client, session: str, method=method, path=path, body=body, **how):
                return await who.call(method, f"/v1/sessions/{session}{path}", body, **how)

            unknown_answer = await ask(client, str(uuid4()))
            assert unknown_answer[0] == 404
            for who, session, headers in [
                (stranger, hers.session_id, None),
                (stranger, hers.session_id, ada),
                (stranger, nobodys.session_id, None),
                (client, hers.session_id, None),
                (client, hers.session_id, bob),
                (client, nobodys.session_id, ada),
            ]:
                assert await ask(who, session, headers=headers) == unknown_answer
        await client.read(hers, headers=ada)
        hers.must_be_whole()
        await client.read_on(nobodys)
        nobodys.must_be_whole()


async def test_a_session_begun_for_a_user_of_the_request_is_read_by_naming_the_user(desk):
    async with desk.client() as client:
        reading = await client.create(question("named", TOKENS), user="Ünal 山田")
        status, body = await client.call("GET", f"/v1/sessions/{reading.session_id}")
        assert status == 404, body
        await client.read(reading, headers={"x-unbroken-user": "Ünal 山田"})
        reading.must_be_whole()
        too_long = {"x-unbroken-user": "u" * 129}
        status, _ = await client.call("GET", f"/v1/sessions/{uuid4()}", headers=too_long)
        assert status == 400


async def test_stopped_and_failed(desk):
    async with desk.client() as client:
        stopped = await client.create(question("stopped", 200))
        await client.read(stopped, leave_at=3)
        status, body = await client.call("POST", f"/v1/sessions/{stopped.session_id}/stop")
        assert (status, body["state"]) == (200, "stopped")
        await client.read(stopped)
        assert [end["state"] for _, end in stopped.ends] == ["stopped"]
        assert stopped.answer.text.startswith(stopped.text)
        assert (await client.read(stopped)).last.status == 204

        desk.engine.set_fault(kind="error_4xx", at_token=5)
        failed = await client.create(question("failed", TOKENS))
        await client.read(failed)
        assert [(name, end["error"]["code"]) for name, end in failed.ends] == [
            ("error", "engine_rejected")
        ]
        assert failed.strays == [], "its end was told once"
        assert failed.cursor == failed.seq + 1
        last = await answered(client, failed, str(failed.seq))
        assert [name for name, _ in last.ends] == ["error"]
        assert (await client.read(failed)).last.status == 204
        await until(lambda: healthy(desk.stack) == 1)


async def test_suspended_then_continued_and_suspended_then_abandoned(desk):
    async with desk.client() as client:
        readings = [await client.create(question(f"left {n}", 150)) for n in range(3)]
        back, late, very_late = readings
        for reading in readings:
            await client.read(reading, leave_at=3)
        await until(lambda: all(state(desk.stack, r) == "suspended" for r in readings))
        await client.read_on(back)
        back.must_be_whole()
        await until(lambda: state(desk.stack, very_late) == "abandoned", WINDOW + 5)
        for reading in (late, very_late):
            await client.read(reading)
            assert [end["state"] for _, end in reading.ends] == ["abandoned"]
            assert reading.answer.text.startswith(reading.text)
            assert reading.strays == []


async def test_the_window_counts_although_nobody_has_swept_yet(desk):
    async with desk.client() as client:
        reading = await client.create(question("just too late", 150))
        await client.read(reading, leave_at=3)
        await until(lambda: state(desk.stack, reading) == "suspended")
        desk.stack.sql(
            "UPDATE streaming_streamsession SET resume_until = now() - interval '1 ms' WHERE id = %s",
            reading.session_id,
        )
        await client.read(reading)
        assert [end["state"] for _, end in reading.ends] == ["abandoned"]


async def test_purged(desk):
    key = {"idempotency-key": "to be purged"}
    body = {"model": "sim-model", "messages": question("purged", TOKENS), "temperature": 0}
    async with desk.client() as client:
        status, answer = await client.call("POST", "/v1/chat/completions", body, headers=key)
        assert status == 200
        session_id = desk.stack.sql(
            "SELECT session_id FROM streaming_idempotencykey WHERE key = 'to be purged'"
        )[0][0]
        desk.stack.sql("DELETE FROM streaming_tokencheckpoint WHERE session_id = %s", session_id)
        desk.stack.sql(
            "UPDATE streaming_streamsession SET purged_at = now() WHERE id = %s", session_id
        )
        for cursor in ("0", "5", str(END), str(END + 1)):
            reading = await answered(client, Reading(str(session_id), []), cursor)
            assert error_of(reading) == (410, "session_purged")
        status, answer = await client.call("POST", "/v1/chat/completions", body, headers=key)
        assert (status, answer["error"]["code"]) == (410, "session_purged")


async def test_a_stream_token_opens_its_session_only(desk):
    async with desk.client() as client:
        body = {"model": "sim-model", "messages": question("by token", TOKENS), "temperature": 0}
        _, created = await client.call("POST", "/v1/sessions", body)
        other = await finished(client)
    token, reading = created["stream_token"], Reading(created["id"], question("by token", TOKENS))
    assert created["events_url"] == f"/v1/sessions/{created['id']}/events"
    secret = desk.stack.env()["SECRET_KEY"]
    young, expired = (token_of(created["id"], secret, age=age) for age in (3500, 3700))
    async with desk.client("no key at all") as bare:
        await bare.read(reading, query=f"?stream_token={token}")
        reading.must_be_whole()
        again = await answered(bare, reading, "0", query=f"?stream_token={young}")
        assert again.text == reading.text
        for session, query in [
            (other.session_id, f"?stream_token={token}"),
            (created["id"], f"?stream_token={token}x"),
            (created["id"], f"?stream_token={expired}"),
            (created["id"], "?stream_token="),
            (created["id"], f"?stream_token={desk.key}"),
            (created["id"], f"?api_key={desk.key}"),
            (created["id"], f"?key={desk.key}"),
            (created["id"], f"?authorization=Bearer%20{desk.key}"),
        ]:
            refused = await answered(bare, Reading(session, []), "0", query=query)
            assert error_of(refused) == (401, "invalid_api_key"), query
        for method, path in [("GET", ""), ("POST", "/stop"), ("POST", "/ack")]:
            url = f"/v1/sessions/{created['id']}{path}?stream_token={token}"
            assert (await bare.call(method, url, {"seq": 1}))[0] == 401, "it is for reading only"


def token_of(session_id: str, secret: str, *, age: int) -> str:
    """A stream token as it was made ``age`` seconds ago."""

    class Then(signing.TimestampSigner):
        def timestamp(self) -> str:
            return signing.b62_encode(signing.b62_decode(super().timestamp()) - age)

    value = signing.b64_encode(f'"{session_id.replace("-", "")}"'.encode()).decode()
    return Then(key=secret, salt="unbroken.stream").sign(value)


def error_of(reading: Reading) -> tuple[int, str]:
    body = reading.last.body
    assert body is not None, reading.last
    assert set(body["error"]) == {"message", "type", "param", "code", "resumable"}
    return reading.last.status, body["error"]["code"]


def state(stack: Stack, reading: Reading) -> str:
    return stack.sql("SELECT state FROM streaming_streamsession WHERE id = %s", reading.session_id)[
        0
    ][0]


def healthy(stack: Stack) -> int:
    return stack.sql("SELECT count(*) FROM streaming_inferencenode WHERE health = 'up'")[0][0]
