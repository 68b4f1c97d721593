"""The first token of a continuation on real llama.cpp: its prompt in the node's prefix cache, or not.

An answer is cut behind its eighth token (a rehearsal) and goes on on the other node. Asked for the
first time, that node has yet to read the whole prompt; asked once more, it has kept it.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import httpx

from bench.chaos.nodes import LlamaNode
from bench.figures import median
from bench.measure import Effort, Figures
from gateway_project.embedded import llama
from tests.failover.client import ask
from tests.stack import Stack

CUT = 8
TOKENS = 24
STORED_SECONDS = 5.0
SENTENCE = "In the year {year}, the harbour master of port {port} wrote down {count} ships. "
SENTENCES = 40


def prefix_cache(effort: Effort) -> dict[str, Any]:
    """p50 of each; ``direct``: the engine alone, asked for a prompt of that length twice."""
    times: dict[str, list[float]] = {"miss": [], "hit": [], "direct_miss": [], "direct_hit": []}
    cached: list[int] = []
    prompt_tokens = 0
    with contextlib.ExitStack() as open_nodes:
        nodes = [LlamaNode(name) for name in ("one", "two")]
        for node in nodes:
            open_nodes.callback(node.close)
        stack = open_nodes.enter_context(
            Stack(
                engine_nodes=[f"{node.name}=llamacpp+{node.url}" for node in nodes],
                env={"ALLOW_REHEARSAL": "1", "LOG_LEVEL": "ERROR"},
            )
        )
        key = stack.api_key(is_test=True)
        for number in range(3 * effort.repeats):
            prompt = _prompt(number)
            for kind in ("miss", "hit"):
                reply = ask(
                    stack.gateway().url, key, prompt, model=llama.MODEL, max_tokens=TOKENS,
                    headers={"X-Unbroken-Rehearse": f"kill@{CUT}"},
                )  # fmt: skip
                recovery, kept = _continuation(stack, reply.session_id)
                times[kind].append(recovery)
                if kind == "hit":
                    cached.append(kept)
                prompt_tokens = reply.counted[0]
            for kind in ("direct_miss", "direct_hit"):
                times[kind].append(_first_token_ms(nodes[0].url, f"{number} again. {prompt}"))
    figures: Figures = {f"{name}_p50": median(values) for name, values in times.items()}
    return {
        **figures,
        "prompt_tokens": prompt_tokens,
        "cached_p50": median(cached),
        "runs": times,
    }


def _continuation(stack: Stack, session: str) -> tuple[float, int]:
    """Its recovery in ms and its cached tokens, once they are stored: that waits for nobody's answer."""
    deadline = time.monotonic() + STORED_SECONDS
    while time.monotonic() < deadline:
        rows = stack.sql(
            "SELECT recovery_ms, coalesce(cached_prompt_tokens, 0) FROM streaming_attempt"
            " WHERE session_id = %s AND first_seq = %s AND recovery_ms IS NOT NULL",
            session,
            CUT + 1,
        )
        if rows:
            return rows[0][0], rows[0][1]
        time.sleep(0.05)
    attempts = stack.sql(
        "SELECT number, end_reason, end_detail, first_seq, last_seq FROM streaming_attempt"
        " WHERE session_id = %s ORDER BY number",
        session,
    )
    raise RuntimeError(f"session {session} has no continuation: {attempts}")


def _prompt(number: int) -> str:
    begin = 1700 + 50 * number
    return "".join(
        SENTENCE.format(year=begin + line, port=line * 7 + number, count=line * 13 + 1)
        for line in range(SENTENCES)
    )


def _first_token_ms(url: str, prompt: str) -> float:
    body = {
        "prompt": prompt,
        "n_predict": 1,
        "temperature": 0,
        "cache_prompt": True,
        "stream": True,
    }
    began = time.perf_counter()
    with httpx.stream("POST", f"{url}/completion", json=body, timeout=60) as response:
        next(response.iter_raw())
        return (time.perf_counter() - began) * 1000
