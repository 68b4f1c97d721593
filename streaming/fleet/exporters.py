"""What GPUs and pods say of themselves: a DCGM exporter's page, and the Kubernetes API.

Both are optional, a node's ``gpu_metrics`` and ``pod``. Most of what they tell is a sum since long
ago (the last Xid, the restarts so far), so each node is read now and then, and ``Exporters`` tells
what is new since a reading from before a failure.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

from streaming.conf import conf
from streaming.core.nodes import NodeOptions
from streaming.fleet.nodes import Fleet, Node

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0
BASELINE_SECONDS = 15.0
"""Pace of the readings that later ones are compared with."""
BEFORE_SECONDS = 5.0
"""A GPU's error may be there for so long before the streams on it break."""
FRESH_SECONDS = 120.0
"""A container that ended longer ago than this, and was not seen before, ended of something else."""
MEBIBYTE = 1024 * 1024


class ExporterError(Exception):
    """An exporter is away, or does not say what one says."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs of one node. ``xids``: the last error number of each, where there was any;
    ``ecc_errors``: uncorrectable ones since the driver was loaded. Memory in bytes."""

    xids: tuple[tuple[str, int], ...] = ()
    """(GPU, number)"""
    ecc_errors: int = 0
    memory_used: int | None = None
    memory_free: int | None = None

    @property
    def memory_share(self) -> float | None:
        """The share of the memory that is in use, 0 to 1."""
        if self.memory_used is None or not self.memory_free:
            return None if self.memory_used is None else 1.0
        return self.memory_used / (self.memory_used + self.memory_free)


@dataclass(frozen=True, slots=True)
class PodReading:
    """A pod's containers. ``exit_code``, ``oom_killed``, ``ended_at``: of the one that ended last."""

    restarts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    ended_at: datetime | None = None
    gone: bool = False
    """There is no such pod any more, or it was evicted."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What has happened to a node's hardware and pod since the reading before."""

    xids: frozenset[int] = frozenset()
    ecc_errors: int = 0
    memory_used: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    gone: bool = False

    @property
    def speak(self) -> bool:
        """Whether anything happened."""
        return bool(self.xids or self.ecc_errors or self.restarts or self.exit_code or self.gone)


def parse_gpus(page: str, *, gpus: Iterable[str] = (), pod: str = "") -> GpuReading:
    """Read a DCGM exporter's page. Raises ``ExporterError`` when it is none.

    An exporter tells of all GPUs of its host. ``gpus``: the indices of those to count. ``pod``
    (``namespace/name``): those that the exporter says are that pod's, if it says so of any.
    """
    try:
        samples = [
            sample
            for family in text_string_to_metric_families(page)
            if family.name.startswith("DCGM_FI_")
            for sample in family.samples
        ]
    except (ValueError, KeyError, IndexError) as exc:
        raise ExporterError(f"not a metrics page: {exc!r}") from exc
    if wanted := frozenset(gpus):
        samples = [sample for sample in samples if sample.labels.get("gpu") in wanted]
    if pod and (its := [sample for sample in samples if _pod_of(sample.labels) == pod]):
        samples = its
    if not samples:
        raise ExporterError("no figures of these GPUs")
    values: dict[str, list[tuple[str, int]]] = {}
    for sample in samples:
        if sample.value == sample.value and abs(sample.value) < 2**53:  # neither NaN nor infinite
            # The parser adds _total to counters that have none; NVIDIA's end in _TOTAL.
            values.setdefault(sample.name.removesuffix("_total"), []).append(
                (sample.labels.get("gpu", ""), int(sample.value))
            )
    return GpuReading(
        xids=tuple(sorted({pair for pair in values.get(XID, ()) if pair[1] > 0})),
        ecc_errors=sum(count for _, count in values.get(ECC, ())),
        memory_used=_mebibytes(values.get(USED)),
        memory_free=_mebibytes(values.get(FREE)),
    )


XID = "DCGM_FI_DEV_XID_ERRORS"
ECC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
USED = "DCGM_FI_DEV_FB_USED"
FREE = "DCGM_FI_DEV_FB_FREE"


def _pod_of(labels: dict[str, str]) -> str:
    """Prometheus renames what collides with its own labels; an exporter read directly does not."""
    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
    return f"{namespace}/{labels.get('exported_pod') or labels.get('pod', '')}"


def _mebibytes(values: list[tuple[str, int]] | None) -> int | None:
    return None if values is None else sum(value for _, value in values) * MEBIBYTE


def parse_pod(body: bytes) -> PodReading:
    """Read the API's ``Pod`` object. Raises ``ExporterError`` when it is none."""
    try:
        status = orjson.loads(body)["status"]
        containers = status.get("containerStatuses") or []
        ended = [
            end
            for container in containers
            for state in (container.get("state"), container.get("lastState"))
            if state and (end := state.get("terminated"))
        ]
        last = max(ended, key=lambda end: end.get("finishedAt") or "", default=None)
        return PodReading(
            restarts=sum(int(container.get("restartCount", 0)) for container in containers),
            exit_code=None if last is None else int(last["exitCode"]),
            oom_killed=last is not None and last.get("reason") == "OOMKilled",
            ended_at=_time(last.get("finishedAt")) if last else None,
            gone=status.get("phase") == "Failed" and status.get("reason") == "Evicted",
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ExporterError(f"not a pod: {exc!r}") from exc


def _time(text: str | None) -> datetime | None:
    return None if not text else datetime.fromisoformat(text)


def gpu_address(options: NodeOptions) -> tuple[str, tuple[str, ...]]:
    """URL and GPU indices of ``gpu_metrics``: ``http://10.0.0.7:9400/metrics#0+1``."""
    url, _, gpus = options.gpu_metrics.partition("#")
    return url, tuple(gpus.split("+")) if gpus else ()


def read_gpus_now(options: NodeOptions) -> GpuReading | None:
    """One reading, for code without an event loop; None: there is no exporter.

    Raises ``ExporterError``.
    """
    url, gpus = gpu_address(options)
    if not url:
        return None
    try:
        response = httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False)
    except httpx.HTTPError as exc:
        raise ExporterError(f"{url}: {exc!r}") from exc
    return parse_gpus(_body(response).decode(errors="replace"), gpus=gpus, pod=options.pod)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a node found. ``at``: loop time. None: not configured, or away."""

    at: float
    gpu: GpuReading | None
    pod: PodReading | None


class Exporters:
    """Reads the exporters of all nodes that have any, and tells what is new."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._readings: dict[int, deque[Reading]] = {}
        self._plain = httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False)
        self._cluster: httpx.AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Exporters of {len(self._readings)} nodes>"

    def start(self) -> None:
        """Begin to take the readings that later ones are compared with."""
        self._task = asyncio.create_task(self._read_forever(), name="exporters")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._plain.aclose()
        if self._cluster is not None:
            await self._cluster.aclose()

    def latest(self, node: Node) -> Reading | None:
        """The last reading of ``node``: its memory, for one."""
        readings = self._readings.get(node.id)
        return readings[-1] if readings else None

    async def look(self, node: Node, since: float) -> Findings:
        """What has happened to ``node`` since shortly before the loop time ``since``.

        Never raises: what cannot be read says nothing.
        """
        if not _is_read(node):
            return Findings()
        before = self._before(node, since - BEFORE_SECONDS)
        gpu_before, pod_before = (before.gpu, before.pod) if before else (None, None)
        gpu, pod = await asyncio.gather(self._read_gpus(node), self._read_pod(node))
        xids: frozenset[int] = frozenset()
        ecc_errors = 0
        if gpu is not None and gpu_before is not None:
            xids = frozenset(number for _, number in set(gpu.xids) - set(gpu_before.xids))
            ecc_errors = max(gpu.ecc_errors - gpu_before.ecc_errors, 0)
        restarts = 0
        if pod is not None and pod_before is not None:
            restarts = max(pod.restarts - pod_before.restarts, 0)
        has_ended = pod is not None and _ended_just_now(pod, pod_before)
        return Findings(
            xids=xids,
            ecc_errors=ecc_errors,
            memory_used=None if gpu is None else gpu.memory_share,
            restarts=restarts,
            exit_code=pod.exit_code if pod is not None and has_ended else None,
            oom_killed=pod is not None and has_ended and pod.oom_killed,
            gone=pod is not None and pod.gone,
        )

    def _before(self, node: Node, at: float) -> Reading | None:
        """The last reading from before ``at``; the first there is, when all are later."""
        readings = self._readings.get(node.id, ())
        earlier = [reading for reading in readings if reading.at <= at]
        return earlier[-1] if earlier else next(iter(readings), None)

    async def _read_forever(self) -> None:
        while True:
            nodes = [node for node in self._fleet.nodes.values() if _is_read(node)]
            for gone in self._readings.keys() - {node.id for node in nodes}:
                del self._readings[gone]
            await asyncio.gather(*(self._read(node) for node in nodes))
            await asyncio.sleep(BASELINE_SECONDS)

    async def _read(self, node: Node) -> None:
        gpu, pod = await asyncio.gather(self._read_gpus(node), self._read_pod(node))
        if gpu is not None or pod is not None:
            now = asyncio.get_running_loop().time()
            self._readings.setdefault(node.id, deque(maxlen=3)).append(Reading(now, gpu, pod))

    async def _read_gpus(self, node: Node) -> GpuReading | None:
        url, gpus = gpu_address(node.options)
        if not url:
            return None
        try:
            page = _body(await self._plain.get(url)).decode(errors="replace")
            return parse_gpus(page, gpus=gpus, pod=node.options.pod)
        except (httpx.HTTPError, httpx.InvalidURL, ExporterError) as exc:
            logger.info("the GPU exporter of %s cannot be read: %r", node.name, exc)
            return None

    async def _read_pod(self, node: Node) -> PodReading | None:
        if not node.options.pod:
            return None
        namespace, _, name = node.options.pod.partition("/")
        url = f"{conf().kubernetes_api.rstrip('/')}/api/v1/namespaces/{namespace}/pods/{name}"
        try:
            response = await self._api().get(url, headers=_authorization())
            if response.status_code == 404:
                return PodReading(gone=True)
            return parse_pod(_body(response))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ExporterError) as exc:
            logger.info("the pod of %s cannot be read: %r", node.name, exc)
            return None

    def _api(self) -> httpx.AsyncClient:
        """The client towards the API, which has a certificate authority of its own."""
        if self._cluster is None:
            ca = Path(conf().kubernetes_account) / "ca.crt"
            context = ssl.create_default_context(cafile=str(ca) if ca.exists() else None)
            self._cluster = httpx.AsyncClient(
                timeout=TIMEOUT_SECONDS, trust_env=False, verify=context
            )
        return self._cluster


def _is_read(node: Node) -> bool:
    return bool(node.options.gpu_metrics or node.options.pod)


def _authorization() -> dict[str, str]:
    """The service account's token; read each time, since the kubelet rotates it."""
    token = Path(conf().kubernetes_account) / "token"
    return {"authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}


def _ended_just_now(pod: PodReading, before: PodReading | None) -> bool:
    if pod.ended_at is None:
        return False
    if before is not None:
        return pod.ended_at != before.ended_at
    return (datetime.now(UTC) - pod.ended_at).total_seconds() < FRESH_SECONDS


def _body(response: httpx.Response) -> bytes:
    if response.status_code != 200:
        raise ExporterError(f"{response.url}: HTTP {response.status_code}")
    return response.content
