"""The browser client in a real Chromium: whatever happens, what is shown is what is stored."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext

from tests.browser.client_tab import Tab, is_suspended, new_tab, sessions_like, state_of
from tests.durability.reader import question, until
from tests.engine_simulator.model import expected_answer
from tests.engine_simulator.process import SimulatorProcess
from tests.resume.proxy import Proxy
from tests.stack import Stack

pytestmark = pytest.mark.browser

MODULES = Path(__file__).parents[2] / "streaming" / "static" / "streaming"
LIMIT = 10_000
STREAMED = ("websocket", "sse")
TRANSPORTS = (*STREAMED, "longpoll", "plain")

Engines = dict[str, SimulatorProcess]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with SimulatorProcess("vllm", pace=15) as first, SimulatorProcess("vllm", pace=15) as second:
        yield {"a": first, "b": second}


@pytest.fixture(scope="module")
def stack(engines: Engines) -> Iterator[Stack]:
    nodes = [f"{name}=vllm+{engine.url}" for name, engine in engines.items()]
    env = {
        "HEALTH_INTERVAL": "0.3", "AUTH_CACHE_SECONDS": "0.1", "GRACE_SECONDS": "3",
        "NODE_WAIT_SECONDS": "1",
    }  # fmt: skip
    with Stack(engine_nodes=nodes, env=env) as stack:
        yield stack


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    return stack.api_key()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context()
    yield context
    await context.close()


def imports(path: Path) -> set[Path]:
    """The module and all that it brings along."""
    found = {path}
    for name in re.findall(r'from "(\..*?)"', path.read_text()):
        found |= imports((path.parent / name).resolve())
    return found


def test_it_weighs_less_than_ten_kilobytes():
    modules = imports(MODULES / "unbroken.js")
    assert len(modules) == 3
    assert sum(len(gzip.compress(path.read_bytes())) for path in modules) < LIMIT


async def opened(
    context: BrowserContext, stack: Stack, key: str, names: Sequence[str], what: str, **more: Any
) -> list[tuple[Tab, str]]:
    """A tab for each transport, each with an answer under way; and its id."""
    tabs = [await new_tab(context, stack, key, transports=[name], **more) for name in names]
    asked = [tab.start(f"{what} {name}") for tab, name in zip(tabs, names, strict=True)]
    return list(zip(tabs, await asyncio.gather(*asked), strict=True))


async def must_be_whole(running: list[tuple[Tab, str]]) -> None:
    for tab, session_id in running:
        await tab.must_be_whole(session_id)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_reload_in_mid_answer(context, stack, key, transport):
    ((tab, session_id),) = await opened(context, stack, key, [transport], "reloaded")
    await tab.has_kept_some()
    await tab.reload()
    (kept,) = await tab.get("tab.client.sessions()")
    assert (kept["id"], kept["ended"]) == (session_id, False)
    assert kept["request"]["messages"] == tab.messages
    await tab.resume(session_id)
    await tab.must_be_whole(session_id)
    # What was kept is shown at once, and nothing of it was asked for again.
    assert (await tab.get("tab.pieces"))[0] >= kept["seq"] >= 1
    assert await tab.get("tab.answer.transport") == transport
    # And when it is over, it is there without the gateway.
    await tab.reload()
    await tab.page.route("**/v1/**", lambda route: route.abort())
    await tab.resume(session_id)
    await tab.is_over()
    assert await tab.get("tab.out.textContent") == expected_answer(tab.messages).text


async def test_the_gateway_is_killed(context, stack, key):
    running = await opened(context, stack, key, TRANSPORTS, "killed")
    stack.gateway().kill()
    stack.gateway().start_again()
    await must_be_whole(running)
    # Who polls need not have noticed.
    for tab, _ in running[: len(STREAMED)]:
        assert "reconnecting" in await tab.get("tab.states")


async def test_the_engine_is_killed(context, stack, key, engines):
    running = await opened(context, stack, key, TRANSPORTS, "engine of")
    ((node,),) = stack.sql(
        "SELECT node_name FROM streaming_attempt WHERE session_id = %s", running[0][1]
    )
    engines[node].kill()
    try:
        await must_be_whole(running)
    finally:
        engines[node].restart()


async def test_all_engines_are_killed_for_a_while(context, stack, key, engines):
    """The answers break off with an error that is worth coming back for."""
    running = await opened(context, stack, key, TRANSPORTS, "no engine for")
    for engine in engines.values():
        engine.kill()
    try:
        for _, session_id in running:
            await until(lambda found=session_id: broken_off(stack, found), 20)
    finally:
        for engine in engines.values():
            engine.restart()
    await must_be_whole(running)


def broken_off(stack: Stack, session_id: str) -> bool:
    """Whether an error has suspended it: at the moment, or before its reader came back."""
    query = (
        "SELECT count(*) > 0 FROM streaming_sessionevent WHERE session_id = %s"
        " AND kind = 'suspended' AND data -> 'error' ->> 'code' = 'no_healthy_node'"
    )
    return stack.sql(query, session_id)[0][0]


async def test_offline_for_ten_seconds(context, stack, key):
    async with Proxy(stack.gateway().port) as proxy:
        running = await opened(context, stack, key, TRANSPORTS, "offline", url=proxy.url)
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        await context.set_offline(True)
        await proxy.cut()
        await asyncio.sleep(10)
        for _, session_id in running:
            await is_suspended(stack, session_id)
        assert len(asked) < 12 * len(running)  # it waits, it does not hammer
        proxy.mend()
        await context.set_offline(False)
        await must_be_whole(running)


async def test_a_frozen_tab_goes_on_when_it_is_shown_again(context, stack, key):
    tab = await new_tab(context, stack, key)
    session_id = await tab.start("frozen")
    devtools = await context.new_cdp_session(tab.page)
    await devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    await until(lambda: state_of(stack, session_id) in ("suspended", "completed"), 60)
    await devtools.send("Page.setWebLifecycleState", {"state": "active"})
    await tab.must_be_whole(session_id)


async def test_two_tabs_read_one_session(context, stack, key):
    first = await new_tab(context, stack, key, transports=["websocket"])
    session_id = await first.start("twice read")
    second = await new_tab(context, stack, key, transports=["sse"])
    second.messages = first.messages
    await second.resume(session_id)
    await first.must_be_whole(session_id)
    await second.must_be_whole(session_id)


async def test_a_slow_network_that_cuts_connections(context, stack, key):
    async with Proxy(stack.gateway().port, lifetime=2.5) as proxy:
        tabs = []
        for name in STREAMED:
            tab = await new_tab(context, stack, key, proxy.url, transports=[name])
            devtools = await context.new_cdp_session(tab.page)
            slow = {"latency": 300, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
            await devtools.send("Network.enable")
            await devtools.send("Network.emulateNetworkConditions", {"offline": False, **slow})
            tabs.append((tab, await tab.start(f"slow {name}")))
        await must_be_whole(tabs)
        assert proxy.cuts > 2


DENIED = "Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('', 'SecurityError'); } });"
FULL = "IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError'); };"


@pytest.mark.parametrize("trouble", [DENIED, FULL], ids=["denied", "full"])
async def test_storage_is_denied_or_full(context, stack, key, trouble):
    await context.add_init_script(trouble)
    tab = await new_tab(context, stack, key)
    session_id = await tab.start(f"no storage {len(trouble)}", 20)
    await tab.must_be_whole(session_id)
    (kept,) = await tab.get("tab.client.sessions()")  # in memory
    assert (kept["id"], kept["ended"]) == (session_id, True)
    # After a reload nothing is kept, but the gateway has it all.
    await tab.reload()
    assert await tab.get("tab.client.sessions()") == []
    await tab.resume(session_id)
    await tab.must_be_whole(session_id)


@pytest.mark.parametrize("transport", STREAMED)
async def test_the_token_expires_in_mid_answer(context, stack, key, transport):
    def mint() -> dict[str, str]:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{stack.gateway().url}/v1/embed-tokens"
        return httpx.post(url, headers=headers, json={"user": transport}, timeout=30).json()

    first, second = mint(), mint()
    async with Proxy(stack.gateway().port) as proxy:
        tab = await new_tab(
            context, stack, first["token"], proxy.url,
            transports=[transport], fresh=second["token"],
        )  # fmt: skip
        session_id = await tab.start(f"expired {transport}")
        stack.sql("UPDATE streaming_embedtoken SET expires_at = now() WHERE id = %s", first["id"])
        await asyncio.sleep(0.2)  # the gateway's cache of credentials
        await proxy.cut()
        proxy.mend()
        tab.token = second["token"]
        await tab.must_be_whole(session_id)
    assert await tab.get("tab.refreshed") == 1


async def test_stop_after_a_reload(context, stack, key):
    tab = await new_tab(context, stack, key)
    session_id = await tab.start("stopped", 300)
    await tab.reload()
    await tab.resume(session_id)
    await tab.get("tab.answer.stop()")
    assert await tab.is_over() == "stopped"
    ((tokens,),) = stack.sql(
        "SELECT completion_tokens FROM streaming_streamsession WHERE id = %s", session_id
    )
    assert await tab.get("tab.answer.seq") == tokens < 300
    shown = await tab.get("tab.out.textContent")
    assert expected_answer(tab.messages).text.startswith(shown)
    assert sessions_like(stack, session_id) == 1


async def test_what_does_not_get_through_is_left_out(context, stack, key):
    tab = await new_tab(context, stack, key)
    await tab.page.route_web_socket("**/ws/chat/**", lambda socket: socket.close(code=4000))
    session_id = await tab.start("no sockets", 20)
    await tab.must_be_whole(session_id)
    assert await tab.get("tab.answer.transport") == "sse"

    async def without_streams(route) -> None:
        is_stream = route.request.headers["accept"] == "text/event-stream"
        await (route.abort() if is_stream else route.continue_())

    await tab.page.route("**/events?**", without_streams)
    tab.options = {}
    await tab.page.evaluate("tab.out.textContent = ''; tab.pieces = []")
    session_id = await tab.start("no streams", 20)
    await tab.must_be_whole(session_id)
    assert await tab.get("tab.answer.transport") == "longpoll"


NODE = """
import { UnbrokenClient } from %s;
const [url, token, request] = process.argv.slice(1);
const client = new UnbrokenClient({ baseUrl: url, token });
const answer = client.start(JSON.parse(request));
let text = "";
for await (const piece of answer) text += piece.text;
process.stdout.write(JSON.stringify({ text, transport: answer.transport, result: await answer.finished }));
client.close();
"""


async def test_node_uses_the_same_module(stack, key):
    messages = question("from node", 20)
    request = {"model": "sim-model", "messages": messages, "temperature": 0}
    script = NODE % json.dumps((MODULES / "unbroken.js").as_uri())
    arguments = ["--input-type=module", "-e", script, stack.gateway().url, key, json.dumps(request)]
    done = await asyncio.to_thread(
        subprocess.run,
        ["node", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["text"] == told["result"]["text"] == expected_answer(messages).text
    assert told["transport"] in STREAMED
