"""A cluster of somebody else's: where it is, and the commands that hurt it, in a TOML file.

    url = ["https://gateway.example.com"]     # one, or several that are all gateways
    key_file = "chaos.key"                    # the API key, of a tenant of its own
    model = "llama-3.1-8b"
    exact = false                             # greedy answers are the same each time
    database_url = "postgresql://…"           # optional: billing, recovery and states are told then
    prompts = ["Tell a story about a lighthouse."]

    [nodes]                                   # optional: engines that can be asked directly
    gpu-a = "http://10.0.0.7:8000"

    [exporters]                               # optional: the pages of their GPUs' DCGM exporters
    gpu-a = "http://10.0.0.7:9400/metrics"

    [faults.node_kill]
    targets = ["vllm-0", "vllm-1"]
    strike = "kubectl delete pod {target} --grace-period=0 --force"
    undo = "kubectl wait pod/{target} --for=condition=Ready --timeout=300s"

Commands run in a shell, in the directory of the file; ``undo`` returns when the target works again.
"""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from bench.chaos.cluster import Cluster
from bench.chaos.evidence import Sql
from bench.chaos.job import Question
from bench.chaos.nodes import PROMPTS, asked
from bench.chaos.records import FaultKind
from bench.chaos.schedule import KINDS


class GivenCluster(Cluster):
    """Raises ``KeyError`` or ``ValueError`` for a file that lacks something, or names unknown faults."""

    name = "given"

    def __init__(self, path: Path) -> None:
        told = tomllib.loads(path.read_text("utf-8"))
        self._directory = path.resolve().parent
        urls = told["url"]
        self._gateways = [urls] if isinstance(urls, str) else list(urls)
        self.key = (self._directory / told["key_file"]).read_text("utf-8").strip()
        self.model = told["model"]
        self.exact = bool(told.get("exact", False))
        self._prompts: Sequence[str] = told.get("prompts", PROMPTS)
        self._nodes: dict[str, str] = told.get("nodes", {})
        self._exporters: dict[str, str] = told.get("exporters", {})
        self._database: str = told.get("database_url", "")
        self._faults: dict[FaultKind, dict[str, Any]] = told.get("faults", {})
        if unknown := set(self._faults) - set(KINDS):
            raise ValueError(f"no such faults: {', '.join(unknown)}")
        if unknown := set(self._exporters) - set(self._nodes):
            raise ValueError(f"exporters of no node: {', '.join(unknown)}")

    @property
    def gateways(self) -> list[str]:
        return self._gateways

    @property
    def nodes(self) -> dict[str, str]:
        return self._nodes

    @property
    def exporters(self) -> dict[str, str]:
        return self._exporters

    @property
    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        return {kind: fault["targets"] for kind, fault in self._faults.items()}

    def strike(self, kind: FaultKind, target: str) -> None:
        self._run(self._faults[kind]["strike"], target)

    def undo(self, kind: FaultKind, target: str) -> None:
        self._run(self._faults[kind].get("undo", ""), target)

    def _run(self, command: str, target: str) -> None:
        """Raises ``OSError`` when the command fails."""
        command = command.replace("{target}", shlex.quote(target))
        done = subprocess.run(command, shell=True, check=False, cwd=self._directory)
        if done.returncode:
            raise OSError(f"{command!r} ended with {done.returncode}")

    def questions(self, count: int, tokens: int) -> list[Question]:
        return [
            asked(self._gateways[0], self.key, self.model, prompt, tokens)
            for prompt in self._prompts[:count]
        ]

    @property
    def sql(self) -> Sql | None:
        return self._ask if self._database else None

    def _ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database, autocommit=True) as connection:
            cursor = connection.execute(query, arguments or None)
            return cursor.fetchall() if cursor.description else []
