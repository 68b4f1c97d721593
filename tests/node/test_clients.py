"""The official OpenAI client for JavaScript and the Vercel AI SDK stream through a real gateway."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack

from tests.engine_simulator.process import SimulatorProcess
from tests.node.driver import control, install, questions, run_node


def test_clients_that_know_nothing_of_us(start_stack):
    install()
    with ExitStack() as resources:
        # Each kind of client kills one engine, in the middle of an answer.
        engines = {
            name: resources.enter_context(SimulatorProcess("vllm", pace=80)) for name in "abc"
        }
        stack = start_stack(
            engine_nodes=[f"{name}=vllm+{engine.url}" for name, engine in engines.items()],
            env={"GRACE_SECONDS": "1", "HEALTH_INTERVAL": "0.3"},
        )
        given = {
            "url": stack.gateway().url,
            "key": stack.api_key(),
            "limitedKey": stack.api_key(requests_per_minute=1),
            "control": resources.enter_context(control(stack, engines)),
            "questions": questions(),
        }
        said = run_node(
            ["--test", "--test-concurrency=1", "openai.test.js", "ai_sdk.test.js"],
            {**os.environ, "UNBROKEN": json.dumps(given)},
        )
        assert b"pass 12" in said
        assert sum(not engine.is_alive for engine in engines.values()) == 2
        seams = stack.sql("SELECT seam_grade FROM streaming_attempt WHERE seam_grade <> ''")
        assert seams == [("exact",), ("exact",)]
