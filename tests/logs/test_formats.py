"""A record is a line, in JSON too, whatever is in it; and it says of whom it is."""

from __future__ import annotations

import asyncio
import json
import logging
import math

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gateway_project.logs import JsonFormatter, LineFormatter
from streaming.core import log_fields
from tests.logs.lines import entries

NASTY = [
    "a\nb",
    "a\r\nb",
    "\x00\x1b[2J",
    "a\u2028b\u2029\x85",
    "\ud800",
    "\u202eevil",
    'a"b\\c',
    "日本 👩‍💻",
]
KEY = "ub-live-" + "abcdWXYZ0123_-" * 3


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "t", "levelname": "INFO", "msg": message, "args": arguments, **extra}
    )


@pytest.mark.parametrize("text", NASTY)
def test_a_record_is_one_line_of_json(text: str):
    try:
        raise ValueError(text)
    except ValueError as exc:
        failed = record(
            "failed: %s", text, exc_info=(ValueError, exc, exc.__traceback__), user=text
        )
    (entry,) = entries(JsonFormatter().format(failed))
    assert entry["message"] == f"failed: {text}"
    assert entry["user"] == text
    assert entry["exception"].startswith("Traceback")
    assert f"ValueError: {text}" in entry["exception"]


def test_values_are_those_that_every_reader_takes():
    odd = record("x", a=1, b=1.5, c=None, d=True, e=math.nan, f={"g"}, level="forged")
    (entry,) = entries(JsonFormatter().format(odd))
    assert [entry[name] for name in "abcdef"] == [1, 1.5, None, True, "nan", "{'g'}"]
    assert entry["level"] == "INFO"


@pytest.mark.parametrize("formatter", [JsonFormatter(), LineFormatter()])
def test_keys_are_cut_to_what_tells_them_apart(formatter: logging.Formatter):
    text = f"Authorization: Bearer {KEY} and {KEY}, /events?stream_token=eyJhbGciOiJIUzI1NiJ9.x.y"
    line = formatter.format(record("%s", text, header=text))
    assert KEY[12:] not in line
    assert line.count("ub-live-abcd") + line.count("Bearer ub-l") >= 2
    assert "iOiJIUzI1NiJ9" not in line


async def test_tasks_write_in_the_name_of_whoever_began_them():
    seen: dict[str, dict[str, object]] = {}

    def write(name: str) -> None:
        seen[name] = json.loads(JsonFormatter().format(record("x")))

    async def handler() -> None:
        log_fields.add(session_id="s")  # what is learned later holds for the request as a whole
        await asyncio.create_task(runner())
        await asyncio.create_task(upkeep(), context=log_fields.nobody())
        write("handler")

    async def runner() -> None:
        log_fields.begin(session_id="s", tenant_id=7)
        with log_fields.within(attempt=2, node="b"):
            write("attempt")
        write("runner")

    async def upkeep() -> None:
        log_fields.add(node="a")
        write("upkeep")

    log_fields.begin(request_id="r")
    await asyncio.create_task(handler())
    write("request")
    standard = {"time", "level", "logger", "message"}
    told = {name: {k: v for k, v in e.items() if k not in standard} for name, e in seen.items()}
    assert told == {
        "attempt": {"session_id": "s", "tenant_id": 7, "attempt": 2, "node": "b"},
        "runner": {"session_id": "s", "tenant_id": 7},
        "upkeep": {"node": "a"},
        "handler": {"request_id": "r", "session_id": "s"},
        "request": {"request_id": "r", "session_id": "s"},
    }


def test_lines_for_people_say_it_too():
    log_fields.begin(session_id="s")
    line = LineFormatter().format(record("done", tokens=3))
    log_fields.begin()
    assert line.endswith("INFO t done tokens=3 session_id=s")


@pytest.mark.django_db
def test_who_may_not_see_a_page_leaves_one_line(client: Client, caplog: pytest.LogCaptureFixture):
    """No traceback: nothing is wrong."""
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    assert client.get("/admin/streaming/streamsession/").status_code == 403
    (refused,) = [one for one in caplog.records if one.name == "django.request"]
    assert refused.levelname == "WARNING"
    assert "\n" not in LineFormatter().format(refused)
