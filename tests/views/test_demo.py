"""The first page and the demo's endpoints."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from django.test import Client

from streaming.models import InferenceNode, OutboxMessage
from streaming.services.demo_tokens import read_demo_token

pytestmark = pytest.mark.django_db
PORT = 45678


@pytest.fixture
def demo(settings, tmp_path):
    settings.STREAMING = dataclasses.replace(settings.STREAMING, demo=True)
    settings.DATA_DIR = tmp_path


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def node() -> InferenceNode:
    return InferenceNode.objects.create(
        name="node-a",
        dialect="llamacpp",
        base_url=f"http://127.0.0.1:{PORT}",
        source="environment",
        health="up",
        models_served=["small"],
    )


def note_children(settings, **children) -> None:
    """As ``serve`` does it."""
    path = settings.DATA_DIR / "run" / "services.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"children": children}))


def identity(process: subprocess.Popen[bytes], *, port: int | None = PORT, younger: float = 0):
    created = psutil.Process(process.pid).create_time()
    return {"pid": process.pid, "created": created + younger, "port": port}


def config_of(response) -> dict:
    return json.loads(re.search(r'<script id="config"[^>]*>(.*?)</script>', response.text)[1])


def test_without_demo_mode_there_is_a_landing_page_and_nothing_else(client, node):
    page = client.get("/")
    assert page.status_code == 200
    assert "curl -N http://testserver/v1/chat/completions" in page.text
    assert "ubd_" not in page.text
    assert client.get("/demo/nodes").status_code == 404
    assert client.get("/demo/widget").status_code == 404
    assert client.post("/demo/nodes/node-a/kill").status_code == 404


def test_the_page_gives_its_visitor_a_token_and_knows_them_again(client, demo):
    first, second = client.get("/"), client.get("/")
    visitors = {read_demo_token(config_of(page)["token"]) for page in (first, second)}
    assert len(visitors) == 1
    assert visitors.pop().startswith("visitor-")
    assert first.cookies["unbroken_visitor"]["httponly"]
    assert "no-store" in first["Cache-Control"]
    client.cookies["unbroken_visitor"] = "visitor-somebody-else"
    assert read_demo_token(config_of(client.get("/"))["token"]) != "visitor-somebody-else"


def test_the_widgets_page_has_the_same_visitor(client, demo):
    visitor = read_demo_token(config_of(client.get("/"))["token"])
    page = client.get("/demo/widget")
    token = re.search(r'src="/static/streaming/widget.js" data-token="([^"]+)"', page.text)
    assert token is not None
    assert read_demo_token(token[1]) == visitor


def test_nothing_on_the_pages_is_inline(client, settings, demo):
    for mode, path in ((True, "/"), (True, "/demo/widget"), (False, "/")):
        settings.STREAMING = dataclasses.replace(settings.STREAMING, demo=mode)
        page = client.get(path)
        policy = page["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        scripts = re.findall(r"<script\b[^>]*>", page.text)
        assert all("src=" in script or 'type="application/json"' in script for script in scripts)
        assert not re.search(r"<style|\sstyle=|\son\w+=|https?://(?!testserver)", page.text)


def test_the_nodes_say_how_they_are_and_which_can_be_killed(client, settings, demo, node, child):
    InferenceNode.objects.create(name="gpu", dialect="vllm", base_url="http://gpu:8000")
    # Sample data: no engine stands behind the page by that name.
    InferenceNode.objects.create(
        name="gpu-7", dialect="vllm", base_url="http://gpu-7:8000", admin_state="drained"
    )
    note_children(settings, **{"node-a": identity(child)})
    other, mine = client.get("/demo/nodes").json()
    assert mine == {
        "name": "node-a", "health": "up", "reason": "", "model": "small", "dialect": "llama.cpp",
        "admin_state": "active", "killable": True,
    }  # fmt: skip
    assert (other["name"], other["killable"]) == ("gpu", None)
    child.kill()  # it is a zombie now: its parent has not asked
    assert client.get("/demo/nodes").json()[1]["killable"] is False


def test_a_node_is_killed(client, settings, demo, node, child):
    note_children(settings, **{"node-a": identity(child)})
    client.get("/")
    assert client.post("/demo/nodes/node-a/kill").json() == {"killed": "node-a"}
    assert child.wait(5) == -signal.SIGKILL
    assert client.post("/demo/nodes/node-a/kill").status_code == 409
    (said,) = OutboxMessage.objects.filter(kind="audit").values_list("data", flat=True)
    assert (said["action"], said["subject"]) == ("demo.kill", "node:node-a")
    assert said["actor"].startswith("demo:visitor-")


@pytest.mark.parametrize(
    "identify",
    [
        lambda child: identity(child, younger=-3),  # the pid has another process by now
        lambda child: identity(child, port=PORT + 1),  # a child of that name, but another address
        lambda child: identity(child, port=None),
    ],
)
def test_a_process_that_is_not_certainly_the_nodes_is_left_alone(
    client, settings, demo, node, child, identify
):
    note_children(settings, **{"node-a": identify(child)})
    assert client.post("/demo/nodes/node-a/kill").status_code == 409
    assert child.poll() is None


def test_only_nodes_can_be_killed(client, settings, demo, child):
    note_children(settings, postgres=identity(child), **{"gateway-1": identity(child)})
    for name in ("postgres", "gateway-1", "unknown"):
        assert client.post(f"/demo/nodes/{name}/kill").status_code == 404
    assert child.poll() is None


def test_without_a_running_serve_nothing_is_killable(client, demo, node):
    assert client.get("/demo/nodes").json()[0]["killable"] is None
    assert client.post("/demo/nodes/node-a/kill").status_code == 409


def test_killing_takes_a_post_with_the_pages_csrf_token(settings, demo, node, child):
    note_children(settings, **{"node-a": identity(child)})
    client = Client(enforce_csrf_checks=True)
    csrf = config_of(client.get("/"))["csrf"]
    assert client.get("/demo/nodes/node-a/kill").status_code == 405
    assert client.post("/demo/nodes/node-a/kill").status_code == 403
    assert child.poll() is None
    killed = client.post("/demo/nodes/node-a/kill", headers={"X-CSRFToken": csrf})
    assert killed.status_code == 200
    assert child.wait(5) == -signal.SIGKILL
