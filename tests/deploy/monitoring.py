"""The files of ``deploy/prometheus`` and ``deploy/grafana``, and a real Prometheus that reads them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import yaml

from gateway_project.embedded.process import free_port, spawn

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
RULE_FILES = [RULES / "objectives.yaml", RULES / "alerts.yaml"]
GRAFANA = ROOT / "deploy" / "grafana"
BOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
START_SECONDS = 30.0

Panel = dict[str, Any]


def program(name: str) -> str:
    """Where ``prometheus`` or ``promtool`` is. Raises ``AssertionError`` that says what to install."""
    found = shutil.which(name)
    assert found, f"{name} is not installed: apt-get install prometheus (it brings promtool, too)"
    return found


def board(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def panels(dashboard: dict[str, Any]) -> list[Panel]:
    """Those that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def panel_expressions() -> Iterator[tuple[str, str]]:
    """Dashboard and panel, and each of its expressions, its variables filled in as *All*."""
    for path in BOARDS:
        for panel in panels(board(path)):
            for target in panel["targets"]:
                expression = re.sub(r"\$(node|model)\b", ".*", target["expr"])
                expression = expression.replace("$__rate_interval", "1m")
                assert "$" not in expression
                yield f"{path.stem}: {panel['title']}", expression


def rules() -> list[dict[str, Any]]:
    """Recorded ones and alerts, in the order of the files."""
    return [
        rule
        for path in RULE_FILES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


class Prometheus:
    """A server that scrapes one gateway every second, by the example's own configuration."""

    def __init__(self, directory: Path, gateway_url: str, token: str) -> None:
        directory.mkdir()
        config = yaml.safe_load((RULES / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
        (scrape,) = config["scrape_configs"]
        scrape["static_configs"] = [{"targets": [urlsplit(gateway_url).netloc]}]
        (directory / scrape["authorization"]["credentials_file"]).write_text(token)
        del config["alerting"]
        path = directory / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = spawn(
                [
                    program("prometheus"), f"--config.file={path}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                env={}, cwd=directory, stdout=log, stderr=subprocess.STDOUT,
                death_signal=signal.SIGKILL,
            )  # fmt: skip
        self._client = httpx.AsyncClient(base_url=self.url, timeout=30)

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(START_SECONDS):
            while not await self._is_ready():
                assert self._process.poll() is None, self._log.read_text()
                await asyncio.sleep(0.1)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()
        self._process.kill()
        self._process.wait()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that it comes to now. Raises ``AssertionError`` with what Prometheus says."""
        answer = (await self._client.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        return answer["data"]["result"]

    async def value(self, expression: str) -> float | None:
        """Of the one series that it comes to; None: there is none."""
        series = await self.query(expression)
        assert len(series) <= 1, series
        return float(series[0]["value"][1]) if series else None

    async def groups(self) -> list[dict[str, Any]]:
        """Its rules, and how their last evaluation went."""
        return (await self._client.get("/api/v1/rules")).json()["data"]["groups"]

    async def until(self, expression: str, value: float, seconds: float = 60.0) -> None:
        """Return when the expression comes to this value. Raises ``TimeoutError``."""
        async with asyncio.timeout(seconds):
            while await self.value(expression) != value:  # noqa: ASYNC110  it is another process
                await asyncio.sleep(0.3)

    async def _is_ready(self) -> bool:
        try:
            return (await self._client.get("/-/ready")).status_code == 200
        except httpx.TransportError:
            return False
