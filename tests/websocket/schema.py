"""``docs/protocol.schema.json``, and what ``docs/protocol.md`` says of the same messages."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "protocol.schema.json").read_text())


@cache
def validator(group: str, name: str | None = None) -> Draft202012Validator:
    """For one message; raises ``KeyError`` when there is none of that name."""
    definition = SCHEMA["$defs"][group]
    return Draft202012Validator(
        {"$defs": SCHEMA["$defs"], **(definition[name] if name else definition)}
    )


def check_message(message: dict[str, Any]) -> None:
    """A message of the server, in its envelope or bare."""
    if "specversion" in message:
        validator("cloudevents").validate(message)
        assert message["type"] == f"unbroken.{message['data']['type']}"
        message = message["data"]
        assert message["type"] != "token", "tokens go without an envelope"
    validator("server", message["type"]).validate(message)


def check_event(name: str, data: dict[str, Any]) -> None:
    """A server-sent event."""
    validator("events", name).validate(data)


def documented(heading: str) -> dict[str, tuple[set[str], set[str]]]:
    """The table under a heading: the required and the optional fields of each message."""
    text = (DOCS / "protocol.md").read_text()
    table = text[text.index(f"| {heading} |") :].split("\n\n")[0]
    found = {}
    for line in table.split("\n")[2:]:
        names, fields = (cell.strip() for cell in line.strip("|").split("|")[:2])
        optional = set(re.findall(r"`(\w+)`\?", fields))
        required = set(re.findall(r"`(\w+)`(?!\?)", fields))
        for name in re.findall(r"`(\w+)`", names):
            found[name] = (required, optional)
    return found


def documented_events() -> dict[str, set[str]]:
    """The events of the sessions API: the fields of each."""
    text = (DOCS / "protocol.md").read_text()
    block = text[text.index("```\nretry:") :].split("```")[1]
    events = re.findall(r"event: (\w+)\ndata: \{(.*)\}", block)
    return {name: set(re.findall(r'"(\w+)"(?=:|,|$)', _flat(data))) for name, data in events}


def _flat(data: str) -> str:
    """Without nested objects and without string values."""
    data = re.sub(r"\{[^{}]*\}", "0", data)
    return re.sub(r': "[^"]*"', ": 0", data)
