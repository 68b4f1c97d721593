"""Groups of engine nodes behind one gateway, so that several cuts run at the same time.

Each group serves a model of its own. When a group is whole, its nodes are asked in order: the
first serves, the second takes over, and so on.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

import psycopg

from tests.engine_simulator.process import SimulatorProcess
from tests.failover.client import Reply, ask
from tests.stack import Stack

Case = TypeVar("Case")
WAIT_SECONDS = 10.0
# Probing often makes a restarted node useful again at once; that it fails again and again is wanted.
ENVIRONMENT = {"HEALTH_INTERVAL": "0.2", "ALLOW_REHEARSAL": "1", "CIRCUIT_FAILURES": "1000000"}
# So different that they decide the order also for a node that has just returned.
WEIGHTS = (1000, 30, 1)


class Group:
    """Nodes that serve one model. ``nodes[0]`` is asked first."""

    def __init__(
        self, stack: Stack, key: str, model: str, nodes: Sequence[SimulatorProcess]
    ) -> None:
        self._stack = stack
        self._key = key
        self.model = model
        self.nodes = list(nodes)
        self._connection = psycopg.connect(stack.database_url, autocommit=True)

    def __repr__(self) -> str:
        return f"<Group {self.model}: {self.nodes}>"

    def ask(self, prompt: str | list[dict[str, str]], **parameters: Any) -> Reply:
        return ask(self._stack.gateway().url, self._key, prompt, model=self.model, **parameters)

    def sql(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """As ``Stack.sql``, on a connection that stays."""
        return self._connection.execute(query, arguments).fetchall()

    def close(self) -> None:
        self._connection.close()

    def node_names(self) -> list[str]:
        return [f"{self.model}-{letter}" for letter in "abc"[: len(self.nodes)]]

    def make_whole(self) -> None:
        """Revive nodes that have died, and wait until the gateway sees all of them."""
        names = self.node_names()
        dead = [n for n, node in zip(names, self.nodes, strict=True) if not node.is_alive]
        # The gateway must have seen the death, or it might report the health from before.
        self._wait_for_health(dead, "down")
        for node in self.nodes:
            if not node.is_alive:
                node.restart()
        self._wait_for_health(names, "up")

    def _wait_for_health(self, names: Sequence[str], health: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while names:
            query = "SELECT name FROM streaming_inferencenode WHERE health <> %s AND name = ANY(%s)"
            others = self.sql(query, health, list(names))
            if not others:
                return
            assert time.monotonic() < deadline, f"{others} did not become {health}"
            time.sleep(0.03)


class Groups:
    """Spreads cases over the groups."""

    def __init__(self, groups: Sequence[Group], workers: ThreadPoolExecutor) -> None:
        self.all = list(groups)
        self._workers = workers
        self._idle: queue.SimpleQueue[Group] = queue.SimpleQueue()
        for group in groups:
            self._idle.put(group)

    def sweep(self, cases: Sequence[Case], try_case: Callable[[Group, Case], None]) -> None:
        """Try every case on some group. Raises one ``AssertionError`` that names all that failed."""
        problems = [p for p in self._workers.map(lambda c: self._try(c, try_case), cases) if p]
        assert not problems, f"{len(problems)} of {len(cases)} failed:\n" + "\n".join(problems)

    def _try(self, case: Case, try_case: Callable[[Group, Case], None]) -> str | None:
        group = self._idle.get()
        try:
            group.make_whole()
            try_case(group, case)
        except AssertionError as exc:
            return f"{case}: {exc}"
        finally:
            for node in group.nodes:
                if node.is_alive:
                    node.clear_faults()
            self._idle.put(group)
        return None


@contextmanager
def node_groups(
    dialect: str, *, groups: int = 4, nodes: int = 2, options: str = "", **simulator: Any
) -> Iterator[Groups]:
    """``options`` of the nodes as in ENGINE_NODES; ``simulator``: options of its command line."""
    with ExitStack() as resources:
        # These threads start the nodes again, and a node dies with the thread that started it.
        workers = resources.enter_context(ThreadPoolExecutor(groups))
        models = [f"model-{number}" for number in range(groups)]
        processes = {
            model: [
                resources.enter_context(SimulatorProcess(dialect, model=model, **simulator))
                for _ in range(nodes)
            ]
            for model in models
        }
        specs = [
            f"{model}-{letter}={dialect}+{node.url}{options or '?'}&weight={weight}"
            for model, members in processes.items()
            for letter, weight, node in zip("abc", WEIGHTS, members, strict=False)
        ]
        stack = resources.enter_context(Stack(engine_nodes=specs, env=ENVIRONMENT))
        key = stack.api_key(is_test=True)
        members = [
            resources.enter_context(closing(Group(stack, key, model, processes[model])))
            for model in models
        ]
        yield Groups(members, workers)
