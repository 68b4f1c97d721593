"""What staff and finance wait for: the list of interrupted sessions, and an export."""

from __future__ import annotations

import time
from typing import Any

import httpx

from bench.figures import median
from bench.measure import Effort
from tests.billing.exports.test_million import month, run
from tests.stack import Stack

SESSIONS = 100_000
CHECKPOINTS = 5
LINES = 50_000
LIST = "/admin/streaming/interruptedsession/"
ENTER = """
from django.contrib.auth.models import User
from django.test import Client
from tests.admin.desk_rows import fill
fill({sessions}, {checkpoints})
client = Client()
client.force_login(User.objects.create_superuser("bench"))
print(client.cookies["sessionid"].value)
"""


def desk(effort: Effort) -> dict[str, Any]:
    """Pages through a gateway; against the same gateway's page without a table (``/healthz``)."""
    with Stack(env={"LOG_LEVEL": "ERROR"}) as stack:
        told = stack.manage("shell", "-c", ENTER.format(sessions=SESSIONS, checkpoints=CHECKPOINTS))
        cookies = {"sessionid": told.split()[-1]}
        times: dict[str, list[float]] = {"list": [], "searched": [], "nothing": []}
        with httpx.Client(base_url=stack.gateway().url, cookies=cookies, timeout=60) as client:
            client.get(LIST)  # what is cached once
            for _ in range(5 * effort.repeats):
                for name, path in (
                    ("list", LIST),
                    ("searched", f"{LIST}?q=user-43"),
                    ("nothing", "/healthz"),
                ):
                    began = time.perf_counter()
                    answer = client.get(path)
                    times[name].append((time.perf_counter() - began) * 1000)
                    if answer.status_code != 200:
                        raise RuntimeError(f"{path}: {answer.status_code}")
    return {f"{name}_p50": median(values) for name, values in times.items()}


def export(effort: Effort) -> dict[str, Any]:
    """Lines a second and peak memory of a month's export."""
    figures: dict[str, Any] = {}
    with Stack(gateways=0) as stack:
        month(stack, LINES)
        for format in ("csv", "parquet"):
            made = run(stack, format)
            figures |= {
                f"{format}_lines_per_second": LINES / made["seconds"],
                f"{format}_peak_mib": made["peak"],
            }
    return figures
