"""``/ws/chat/``: what is said, what is answered, and that nothing waits for a stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from uuid import uuid4

import psycopg
import pytest
import websockets

from tests.durability.reader import until
from tests.websocket.conftest import PACE, Hall
from tests.websocket.talk import answer_to, chat, talk


async def test_an_answer(hall: Hall) -> None:
    async with hall.talk() as mine:
        request = chat("one answer", 40)
        followed = await mine.begin(request, ref={"any": ["value", 1]})
        assert followed.opening["ref"] == {"any": ["value", 1]}
        await mine.read_until(lambda: followed.end is not None)
        assert followed.text == answer_to(request)
        assert followed.end["state"] == "completed"
        assert followed.end["seq"] == followed.end["usage"]["completion_tokens"] + 1
        # Having all, the reader is told so, and nothing is generated.
        session = followed.opening["session"]
        await mine.say("resume", session=session, seq=followed.cursor)
        await mine.read_until(lambda: bool(mine.others))
        assert mine.others == [{"type": "complete", "session": session, "seq": followed.cursor}]


async def test_several_sessions_over_one_socket(hall: Hall) -> None:
    async with hall.talk() as mine:
        requests = {number: chat(f"session {number}", 60 + number) for number in range(8)}
        for number, request in requests.items():
            await mine.say("start", request=request, ref=number)
        await mine.read_until(
            lambda: len(mine.sessions) == 8 and all(f.end for f in mine.sessions.values())
        )
        for followed in mine.sessions.values():
            assert followed.text == answer_to(requests[followed.opening["ref"]])
        order = [m["session"] for m in mine.log if m["type"] == "token"]
        assert len(set(order[: len(order) // 2])) == 8, "one after the other"


async def test_stop_is_handled_while_it_streams(hall: Hall) -> None:
    async with hall.talk() as mine:
        followed = await mine.begin(chat("stop me", 2000))
        other = await mine.begin(chat("not me", 150))
        await mine.read_until(lambda: followed.cursor >= 20)
        asked = time.monotonic()
        await mine.say("stop", session=followed.opening["session"])
        await mine.read_until(lambda: followed.end is not None, 3)
        assert time.monotonic() - asked < 0.5
        assert followed.end["state"] == "stopped"
        await mine.read_until(lambda: other.end is not None)
        assert other.end["state"] == "completed"


async def test_ack_is_handled_while_it_streams(hall: Hall) -> None:
    async with hall.talk() as mine:
        followed = await mine.begin(chat("ack me", 600))
        session = followed.opening["session"]
        await mine.read_until(lambda: followed.cursor >= 30)
        await mine.say("ack", session=session, seq=followed.cursor)
        await mine.say("ping")
        await mine.read_until(lambda: any(m["type"] == "pong" for m in mine.others), 1)
        assert followed.end is None
        acked = followed.cursor
        await mine.read_until(lambda: delivered(hall, session) >= acked, 2)
        error = await mine.error_of(json.dumps({"type": "ack", "session": session, "seq": 5000}))
        assert error["error"]["code"] == "cursor_beyond_log"
        assert delivered(hall, session) <= followed.cursor + PACE
        await mine.say("stop", session=session)
        await mine.read_until(lambda: followed.end is not None)


def delivered(hall: Hall, session: str) -> int:
    return hall.stack.sql("SELECT delivered_seq FROM session_fence WHERE session_id = %s", session)[
        0
    ][0]


JUNK = {
    "not JSON": "hello",
    "empty": "",
    "binary": b"\xff\x00",
    "a list": "[1, 2]",
    "a number": "3",
    "deep": "[" * 5000 + "]" * 5000,
    "no type": "{}",
    "unknown type": '{"type": "frobnicate"}',
    "type is a list": '{"type": ["start"]}',
    "type is null": '{"type": null}',
    "start without request": '{"type": "start"}',
    "request is a string": '{"type": "start", "request": "hi"}',
    "no messages": '{"type": "start", "request": {"model": "sim-model"}}',
    "unsupported": '{"type": "start", "request": {"model": "sim-model", "messages": [{"role": "user", "content": "x"}], "n": 2}}',
    "rehearse is a number": '{"type": "start", "rehearse": 3, "request": {"model": "sim-model", "messages": [{"role": "user", "content": "x"}]}}',
    "seq is a string": '{"type": "resume", "session": "SESSION", "seq": "1"}',
    "seq is negative": '{"type": "resume", "session": "SESSION", "seq": -1}',
    "seq is true": '{"type": "ack", "session": "SESSION", "seq": true}',
    "seq is huge": '{"type": "ack", "session": "SESSION", "seq": 99999999999999999999}',
    "user is a number": '{"type": "stop", "session": "SESSION", "user": 7}',
}
NOT_FOUND = {
    "no session": '{"type": "resume"}',
    "session is junk": '{"type": "stop", "session": "junk"}',
    "session is a list": '{"type": "ack", "session": [], "seq": 1}',
    "resume unknown": '{"type": "resume", "session": "UNKNOWN"}',
    "stop unknown": '{"type": "stop", "session": "UNKNOWN"}',
    "ack unknown": '{"type": "ack", "session": "UNKNOWN", "seq": 1}',
    "unknown model": '{"type": "start", "request": {"model": "gpt-none", "messages": [{"role": "user", "content": "x"}]}}',
}


async def test_every_protocol_error_is_answered(hall: Hall) -> None:
    """And costs neither the socket nor the session that streams over it."""
    async with hall.talk() as mine:
        request = chat("not disturbed", 300)
        followed = await mine.begin(request)
        session = followed.opening["session"]
        for name, raw in JUNK.items():
            text = raw.replace("SESSION", session) if isinstance(raw, str) else raw
            error = await mine.error_of(text)
            assert error["error"]["type"] == "invalid_request_error", (name, error)
        for name, raw in NOT_FOUND.items():
            error = await mine.error_of(raw.replace("UNKNOWN", str(uuid4())))
            assert error["error"]["code"] in ("not_found", "model_not_found"), (name, error)
        error = await mine.error_of(json.dumps({"type": "resume", "session": session, "ref": 7}))
        assert (error["error"]["param"], error["ref"]) == ("session", 7)
        await mine.read_until(lambda: followed.end is not None)
        assert followed.text == answer_to(request)
    assert "Traceback" not in hall.owner.log


async def test_anothers_session_is_like_none(hall: Hall) -> None:
    async with (
        hall.talk() as mine,
        hall.talk(key=hall.stack.api_key("globex")) as theirs,
    ):
        followed = await mine.begin(chat("private", 400, user="ada"))
        session = followed.opening["session"]
        for type_ in ("resume", "stop", "ack"):
            asked = {"type": type_, "session": session, "seq": 1}
            of_none = await theirs.error_of(json.dumps({**asked, "session": str(uuid4())}))
            of_mine = await theirs.error_of(json.dumps(asked))
            assert of_mine["error"] == of_none["error"]
            # The same tenant's other end user is nobody either.
        async with hall.talk() as colleague:
            for user in (None, "bob"):
                asked = {"type": "resume", "session": session}
                error = await colleague.error_of(
                    json.dumps(asked | ({"user": user} if user else {}))
                )
                assert error["error"]["code"] == "not_found"
            await colleague.begin_again(session, 0, user="ada")
            await colleague.say("stop", session=session, user="ada")
            await mine.read_until(lambda: followed.end is not None, 3)
            assert followed.end["state"] == "stopped"


async def test_the_handshake_names_the_end_user_of_all_messages(hall: Hall) -> None:
    url, key = hall.owner.websocket_url + "/ws/chat/", hall.key
    async with talk(url, key, user="eve") as mine, talk(url, key, user="bob") as other:
        followed = await mine.begin(chat("named once", 200))
        session = followed.opening["session"]
        # Neither another socket's user nor a message of that socket speaks for eve.
        for asked in ({}, {"user": "eve"}):
            error = await other.error_of(
                json.dumps({"type": "resume", "session": session, **asked})
            )
            assert error["error"]["code"] == "not_found"
        async with talk(url, key, user="eve") as second_tab:
            await second_tab.begin_again(session, 0)
            await second_tab.say("stop", session=session)
            await mine.read_until(lambda: followed.end is not None, 3)


async def test_too_many_sessions(hall: Hall) -> None:
    async with hall.talk() as mine:
        for number in range(32):
            await mine.say("start", request=chat(f"many {number}", 3000))
        await mine.read_until(lambda: len(mine.sessions) == 32)
        error = await mine.error_of(json.dumps({"type": "start", "request": chat("one more", 5)}))
        assert "at most 32" in error["error"]["message"]
        gone, *rest = mine.sessions
        await mine.say("stop", session=gone)
        await mine.read_until(lambda: mine.sessions[gone].end is not None)
        await mine.begin(chat("fits again", 5))
        for session in rest:
            await mine.say("stop", session=session)
        await mine.read_until(lambda: all(f.end for f in mine.sessions.values()))


async def test_cloudevents_wrap_everything_but_tokens(hall: Hall) -> None:
    async with hall.talk(query="?envelope=cloudevents") as mine:
        request = chat("wrapped", 30)
        followed = await mine.begin(request)
        await mine.say("ping")
        await mine.read_until(lambda: followed.end is not None and bool(mine.others))
        assert followed.text == answer_to(request)
        bare = {m["type"] for m in mine.log if "specversion" not in m}
        wrapped = {m["type"] for m in mine.log if "specversion" in m}
        assert bare == {"token"}
        assert wrapped >= {"unbroken.session", "unbroken.done", "unbroken.pong"}
        ids = [m["id"] for m in mine.log if "specversion" in m]
        assert len(ids) == len(set(ids))


async def test_heartbeat(hall: Hall) -> None:
    async with hall.talk(query="?heartbeat=1") as mine:
        began = time.monotonic()
        await mine.read_until(lambda: len(mine.others) == 2, 4)
        assert 1.9 < time.monotonic() - began < 3.2
        assert {m["type"] for m in mine.others} == {"ping"}
        followed = await mine.begin(chat("heartbeat", 5))
        assert followed.opening["heartbeat_seconds"] == 1


@pytest.mark.parametrize("wish", ["0", "31", "-1", "nan", "junk", ""])
async def test_bad_heartbeat(hall: Hall, wish: str) -> None:
    async with hall.talk(query=f"?heartbeat={wish}&x=1") as mine:
        if wish == "":  # as good as not given
            await mine.begin(chat("heartbeat", 5))
            return
        assert await mine.read_to_close() == 4400
        assert mine.others[0]["error"]["param"] == "heartbeat"


@pytest.mark.parametrize("key", ["", "ub-wrong"])
async def test_without_a_key(hall: Hall, key: str) -> None:
    async with hall.talk(key=key) as mine:
        # Said before the refusal can have arrived.
        with contextlib.suppress(websockets.ConnectionClosed):
            await mine.say("start", request=chat("nobody", 5))
            await mine.say("ping")
        assert await mine.read_to_close() == 4401
        assert [m["error"]["code"] for m in mine.others] == ["invalid_api_key"]
    assert "Traceback" not in hall.owner.log


async def test_unknown_path(hall: Hall) -> None:
    for path in ("/ws/", "/ws/chat/x", "/v1/chat/completions"):
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with talk(hall.owner.websocket_url + path, hall.key):
                pass
        assert refused.value.response.status_code == 403
    assert "Traceback" not in hall.owner.log


# Coming back


@pytest.mark.parametrize("cut", [0, 1, 2, 17, 38, 39, 40])
async def test_resume_after_a_cut(hall: Hall, cut: int) -> None:
    request = chat(f"cut at {cut}", 40)
    async with hall.talk() as first:
        before = await first.begin(request)
        await first.read_until(lambda: before.cursor >= cut or before.end is not None)
        first.socket.transport.abort()
    async with hall.talk(1) as second:
        after = await second.begin_again(before.opening["session"], before.cursor)
        await second.read_until(lambda: after.end is not None)
        assert before.text + after.text == answer_to(request)
        assert after.opening["seq"] == before.cursor


async def test_nobody_is_told_of_a_session_that_others_cannot_find(hall: Hall) -> None:
    request = chat("slow database", 20)
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'streaming_streamsession'::regclass"
    async with hall.talk() as first, hall.talk(1) as second:
        with psycopg.connect(hall.stack.database_url) as rival:
            rival.execute("LOCK TABLE streaming_streamsession IN EXCLUSIVE MODE")
            await first.say("start", request=request)
            await until(lambda: hall.stack.sql(waits) != [(0,)])
            await first.say("ping")
            await first.read_until(lambda: any(m["type"] == "pong" for m in first.others))
            assert not first.sessions
        await first.read_until(lambda: bool(first.sessions))
        (session,) = first.sessions
        found = await second.begin_again(session, 0)
        await second.read_until(lambda: found.end is not None)
        assert found.text == answer_to(request)


async def test_the_reader_is_told_of_a_failover_in_order(hall: Hall) -> None:
    async with hall.talk() as mine:
        request = chat("failover", 80)
        followed = await mine.begin(request, rehearse="kill@30")
        await mine.read_until(lambda: followed.end is not None)
        assert followed.text == answer_to(request)
        assert followed.kinds == ["token", "recovering", "recovered", "token", "done"]


async def test_resume_after_the_owner_was_killed(hall: Hall) -> None:
    request = chat("killed", 300)
    async with hall.talk() as first:
        before = await first.begin(request)
        await first.read_until(lambda: before.cursor >= 40)
        hall.owner.kill()
        with pytest.raises(websockets.ConnectionClosed):
            await first.read_until(lambda: False)
    async with hall.talk(1) as second:
        after = await second.begin_again(before.opening["session"], before.cursor)
        await second.read_until(lambda: after.end is not None)
        assert before.text + after.text == answer_to(request)
    epochs = "SELECT count(DISTINCT epoch) FROM streaming_tokencheckpoint WHERE session_id = %s"
    assert hall.stack.sql(epochs, before.opening["session"]) == [(2,)]


async def test_a_restart_of_redis_closes_no_socket(hall: Hall) -> None:
    request = chat("redis", 300)
    async with hall.talk() as mine:
        followed = await mine.begin(request)
        await mine.read_until(lambda: followed.cursor >= 40)
        await asyncio.to_thread(hall.stack.stop_redis)
        await mine.read_until(lambda: followed.cursor >= 120)
        hall.stack.start_redis()  # in the thread that stays: Redis ends with the one that starts it
        await mine.read_until(lambda: followed.end is not None)
        assert followed.text == answer_to(request)


async def test_sigterm_closes_with_1012_and_loses_nothing(hall: Hall) -> None:
    request = chat("restart", 250)
    async with hall.talk() as first:
        before = await first.begin(request)
        idle = hall.talk()
        async with idle as silent:
            await first.read_until(lambda: before.cursor >= 40)
            asked = time.monotonic()
            hall.owner.terminate()
            codes = await asyncio.gather(first.read_to_close(), silent.read_to_close())
            assert codes == [1012, 1012]
            assert time.monotonic() - asked < 1.2
    async with hall.talk(1) as second:
        after = await second.begin_again(before.opening["session"], before.cursor)
        await second.read_until(lambda: after.end is not None)
        assert before.text + after.text == answer_to(request)
    await until(lambda: hall.owner.process.poll() is not None)
    assert hall.owner.process.returncode == 0
    assert hall.state_of(before.opening["session"]) == "completed"
