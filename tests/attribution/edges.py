"""The edges we do not own, as small servers: a GPU exporter and the Kubernetes API."""

from __future__ import annotations

import copy
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

# As dcgm-exporter 4.x writes it for a host with two GPUs under Kubernetes.
DCGM_PAGE = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-604ac76c",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-0"} 1980
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-604ac76c",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-0",err_code="%(xid0)s",err_msg="an error"} %(xid0)s
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-9d1f0e22",pci_bus_id="00000000:AF:00.0",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-1",err_code="%(xid1)s",err_msg="an error"} %(xid1)s
# HELP DCGM_FI_DEV_ECC_DBE_VOL_TOTAL Total number of double-bit volatile ECC errors.
# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-604ac76c",device="nvidia0",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-0"} %(ecc0)s
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="1",UUID="GPU-9d1f0e22",device="nvidia1",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-1"} 3
# HELP DCGM_FI_DEV_FB_FREE Frame buffer memory free (in MB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-604ac76c",device="nvidia0",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-0"} 8000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-9d1f0e22",device="nvidia1",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-1"} 80000
# HELP DCGM_FI_DEV_FB_USED Frame buffer memory used (in MB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-604ac76c",device="nvidia0",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-0"} 72000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-9d1f0e22",device="nvidia1",Hostname="node-7",container="vllm",namespace="serving",pod="vllm-1"} 0
"""

# As `kubectl get --raw` shows it, shortened to what is of interest here.
POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "vllm-0", "namespace": "serving"},
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "vllm",
                "state": {"running": {"startedAt": "2026-11-20T08:00:00Z"}},
                "lastState": {},
                "ready": True,
                "restartCount": 2,
            }
        ],
    },
}


def dcgm_page(*, xid0: int = 0, xid1: int = 0, ecc0: int = 0) -> str:
    return DCGM_PAGE % {"xid0": xid0, "xid1": xid1, "ecc0": ecc0}


def ended_pod(
    *, reason: str, exit_code: int, finished_at: str, restarts: int = 3
) -> dict[str, Any]:
    """The pod after a container of it has ended and was started again."""
    pod = copy.deepcopy(POD)
    (container,) = pod["status"]["containerStatuses"]
    container["restartCount"] = restarts
    container["lastState"] = {
        "terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": finished_at}
    }
    return pod


class Edges:
    """One server for both; what it says may be changed. An async context manager."""

    def __init__(self) -> None:
        self.page: str | None = dcgm_page()
        self.pod: dict[str, Any] | None = POD
        self.tokens: list[str] = []
        """The credentials it was asked with."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/api/v1/namespaces/serving/pods/vllm-0", self._pod)
        self._server = TestServer(application)

    @property
    def url(self) -> str:
        return str(self._server.make_url("")).rstrip("/")

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.close()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.page) if self.page is not None else web.Response(status=503)

    async def _pod(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("authorization", ""))
        if self.pod is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(self.pod)
