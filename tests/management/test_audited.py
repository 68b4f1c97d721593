"""What commands and clients do is announced to the audit log, with who did it."""

from __future__ import annotations

import asyncio
import os
import pwd
from io import StringIO

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from streaming.core.ids import uuid7
from streaming.models import ApiKey, OutboxMessage
from streaming.services.audit import announce, announce_async

pytestmark = pytest.mark.django_db


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def announced() -> list[tuple[str, str, str]]:
    return [
        (said["action"], said["actor"], said["subject"])
        for said in OutboxMessage.objects.order_by("id").values_list("data", flat=True)
    ]


def test_every_command_that_changes_something_is_announced():
    run("create_api_key", "--tenant", "acme")
    old = ApiKey.objects.get()
    run("api_keys", "rotate", str(old.pk))
    new = ApiKey.objects.get(replaces=old)
    run("api_keys", "revoke", str(old.pk))
    run("model_alias", "set", "chat", "small")
    run("model_alias", "remove", "chat")
    run("node", "add", "gpu-a=vllm+http://gpu-a:8000")
    run("node", "drain", "gpu-a")
    run("node", "resume", "gpu-a")
    run("switch", "failover", "off", "--node", "gpu-a")
    run("switch", "hedging", "off", "--model", "small")
    run("node", "remove", "gpu-a")
    who = f"command:{pwd.getpwuid(os.getuid()).pw_name}"
    assert announced() == [
        ("tenant.create", who, "tenant:acme"),
        ("key.create", who, f"key:{old.prefix}"),
        ("key.create", who, f"key:{new.prefix}"),
        ("key.rotate", who, f"key:{old.prefix}"),
        ("key.revoke", who, f"key:{old.prefix}"),
        ("alias.set", who, "alias:chat"),
        ("alias.remove", who, "alias:chat"),
        ("node.add", who, "node:gpu-a"),
        ("node.drain", who, "node:gpu-a"),
        ("node.resume", who, "node:gpu-a"),
        ("node.switch", who, "node:gpu-a"),
        ("model.switch", who, "model:small"),
        ("node.remove", who, "node:gpu-a"),
    ]


def test_what_changes_nothing_is_not():
    run("create_api_key", "--tenant", "acme")
    OutboxMessage.objects.all().delete()
    run("api_keys", "list")
    run("node", "list")
    run("switch", "failover", "on", "--model", "m")  # it is
    for refused in (("node", "drain", "none"), ("api_keys", "revoke", "none")):
        with pytest.raises(CommandError):
            run(*refused)
    assert announced() == []


@pytest.mark.django_db(transaction=True)
def test_gateways_announce_the_same_way_in_their_own_transaction():
    of = connection.settings_dict
    session = uuid7()
    said = {
        "actor": "key:#7", "subject": f"session:{session}", "tenant_id": 5, "session_id": session,
        "seq": 3, "weight": 0.5, "text": "\x00\ud800",
    }  # fmt: skip

    async def stop() -> None:
        async with await psycopg.AsyncConnection.connect(
            host=of["HOST"], port=of["PORT"], user=of["USER"], password=of["PASSWORD"],
            dbname=of["NAME"], autocommit=True,
        ) as gateway:  # fmt: skip
            await announce_async(gateway, "session.stop", **said)
            async with gateway.transaction(force_rollback=True):
                await announce_async(gateway, "session.stop", **said)

    asyncio.run(stop())
    announce("session.stop", **said)
    first, second = OutboxMessage.objects.order_by("id")
    assert first.data == second.data
    assert first.data["data"] == {"seq": 3, "weight": "0.5", "text": "\ufffd\ufffd"}
    for message in (first, second):
        assert (message.session_id, message.kind, message.handled_at) == (session, "audit", None)
