"""Start, hurt and question a real vLLM server from a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from gateway_project.embedded.process import describe_exit, free_port, spawn
from tests.stack import ROOT

PYTHON = Path(os.environ.get("VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))
MODEL_DIRECTORY = Path(os.environ.get("VLLM_MODEL", ROOT / ".data/vllm-model"))
MODEL = "smollm2-135m-instruct"
CONTEXT_TOKENS = 2048
# Importing torch and building the engine on a busy machine of two cores.
START_SECONDS = 300.0
FLAGS = [
    "--dtype", "float32",
    "--enforce-eager",
    "--max-model-len", str(CONTEXT_TOKENS),
    "--max-num-seqs", "16",
    "--disable-uvicorn-access-log",
]  # fmt: skip
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Two servers, and the tests, share few cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}


class VLLMServer:
    """An API process and its EngineCore, in a process group of their own.

    ``dev_mode`` opens the calls that abort and reset. :meth:`start` does not wait: two can start
    at once.
    """

    def __init__(self, name: str, log: Path, *, dev_mode: bool) -> None:
        self.name = name
        self.log_path = log
        self.dev_mode = dev_mode
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._core: psutil.Process | None = None

    def __repr__(self) -> str:
        return f"<VLLMServer {self.name} on {self.port}>"

    @property
    def core(self) -> psutil.Process:
        """EngineCore: the process that computes."""
        assert self._core is not None, f"{self.name} has not been started"
        return self._core

    @property
    def api(self) -> subprocess.Popen[bytes]:
        """The process that listens."""
        assert self._process is not None, f"{self.name} has not been started"
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether both of its processes exist (a stopped one does)."""
        return (
            self._process is not None
            and self._process.poll() is None
            and (self._core is None or _exists(self._core))
        )

    def start(self) -> None:
        """Start both processes, after those of the last start have been killed."""
        self.kill()
        command = [
            str(PYTHON), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(MODEL_DIRECTORY), "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.port), *FLAGS,
        ]  # fmt: skip
        environment = {**os.environ, **ENVIRONMENT}
        if self.dev_mode:
            environment["VLLM_SERVER_DEV_MODE"] = "1"
        with self.log_path.open("ab") as log:
            self._process = spawn(
                command, env=environment, stdout=log, stderr=log,
                cwd=self.log_path.parent, death_signal=signal.SIGKILL,
            )  # fmt: skip

    def wait_until_healthy(self) -> None:
        """Raises ``AssertionError`` with the end of its log."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.api.poll() is None:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    self._core = self._find_core()
                    return
            time.sleep(0.25)
        code = self.api.poll()
        ended = "" if code is None else f" ({describe_exit(code)})"
        raise AssertionError(f"{self.name} did not start{ended}:\n{self.log[-6000:]}")

    def kill(self) -> None:
        """SIGKILL to all of its processes, stopped ones too, and wait until they are gone."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._core is not None:
            with suppress(psutil.NoSuchProcess):
                self._core.kill()
                self._core.wait(10)
        self._process = self._core = None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    # --- asked without the gateway -----------------------------------------------------------------

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def running(self) -> int:
        """``num_requests_running`` and ``…_waiting``, read without the product's own code."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            name = line.partition("{")[0]
            if name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
                total += float(line.rpartition(" ")[2])
        return int(total)

    def completed(self, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], str]:
        """Ids and text that the engine itself says after ``prompt``, greedily."""
        body = {
            "model": MODEL, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0,
            "return_token_ids": True,
        }  # fmt: skip
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)
        response.raise_for_status()
        choice: dict[str, Any] = json.loads(response.content)["choices"][0]
        return choice["token_ids"], choice["text"]

    def detokenized(self, ids: Sequence[int]) -> str:
        """The text of these tokens as the engine itself has it."""
        body = {"model": MODEL, "tokens": list(ids)}
        response = httpx.post(f"{self.url}/detokenize", json=body, timeout=10)
        response.raise_for_status()
        text: str = json.loads(response.content)["prompt"]
        return text

    def _find_core(self) -> psutil.Process:
        children = psutil.Process(self.api.pid).children(recursive=True)
        cores = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
        assert len(cores) == 1, [child.cmdline() for child in children]
        return cores[0]


def _exists(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
