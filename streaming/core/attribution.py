"""What lay behind an interruption, judged from everything that speaks about it.

``failures.Cause`` is what one stream saw ("the connection was reset"); ``Blame`` is what an
operator wants to know ("the engine ran out of memory"). ``RULES`` is the whole judgement: the first
rule that holds decides, and its reason is stored with the evidence.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streaming.core.failures import Cause


class Blame(enum.StrEnum):
    """The causes that are stored, counted and shown. There are no others."""

    ENGINE_OOM = "engine_oom"
    ENGINE_ECC = "engine_ecc"
    ENGINE_CRASH = "engine_crash"
    ENGINE_FROZEN = "engine_frozen"
    ENGINE_OVERLOAD = "engine_overload"
    NETWORK_RESET = "network_reset"
    NETWORK_PARTITION = "network_partition"
    GATEWAY_CRASH = "gateway_crash"
    GATEWAY_SHUTDOWN = "gateway_shutdown"
    CLIENT_GONE = "client_gone"
    CLIENT_STOP = "client_stop"
    TIMEOUT = "timeout"
    CONTENT_VIOLATION = "content_violation"
    RATE_LIMIT = "rate_limit"
    UNKNOWN = "unknown"


class Probe(enum.Enum):
    """What the first probe after a failure found."""

    NOT_YET = ""
    UP = "up"
    REFUSED = "refused"  # the host answered: nobody listens
    UNREACHABLE = "unreachable"  # no connection in time, or no route
    NO_ANSWER = "no_answer"  # connected, then nothing
    ERROR = "error"  # an answer that says it cannot work


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known about one failed attempt. Times are seconds; None: nobody told.

    ``said``: the engine's or the transport's words. ``errno`` by name. ``unanswered``: how often in
    a row its socket has asked or sent again without an answer of the peer's kernel (``TCP_INFO``).
    ``siblings_failed`` and ``siblings_alive`` count the other streams on its
    node that failed in the same moment, and those that did not; ``nodes_failed`` the other nodes on
    which streams broke off or fell silent in that moment. ``restarted``: its counters began anew.
    ``progressed``: it worked on, for others. ``xids`` and ``ecc_errors``: new on its GPUs since
    before the failure; ``memory_used``: the share of their memory. ``exit_code``, ``oom_killed``:
    of a container of its pod that ended just now; ``pod_restarts``: how often since before.
    """

    seen: Cause
    said: str = ""
    status: int | None = None
    errno: str | None = None
    unanswered: int | None = None
    silence: float = 0.0
    siblings_failed: int = 0
    siblings_alive: int | None = None
    nodes_failed: int = 0
    probe: Probe = Probe.NOT_YET
    probe_after: float | None = None
    restarted: bool = False
    progressed: bool | None = None
    waiting: int | None = None
    xids: frozenset[int] = frozenset()
    ecc_errors: int = 0
    memory_used: float | None = None
    oom_killed: bool = False
    exit_code: int | None = None
    pod_restarts: int = 0
    pod_gone: bool = False

    def as_stored(self) -> dict[str, Any]:
        """The part that says something, as JSON."""
        return {
            f.name: _plain(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        }

    # What several rules ask

    @property
    def is_silence(self) -> bool:
        return self.seen in (Cause.STALLED, Cause.NO_FIRST_TOKEN)

    @property
    def is_break(self) -> bool:
        return self.seen in (Cause.RESET, Cause.CLOSED, Cause.REFUSED)

    @property
    def may_be_its_end(self) -> bool:
        """Whether the engine may have ended in it: an answer that it can or will not work is none."""
        return self.seen not in (Cause.BUSY, Cause.MISMATCH) and (
            self.seen is not Cause.BAD_STATUS or (self.status or 500) >= 500
        )

    @property
    def all_broke(self) -> bool:
        """Its siblings failed with it, every one of them."""
        return self.siblings_failed > 0 and self.siblings_alive == 0

    @property
    def works_for_others(self) -> bool:
        return bool(self.progressed or self.siblings_alive)

    @property
    def host_answers(self) -> bool:
        """Its kernel, which answers even for a stopped process, did so during the silence."""
        return self.unanswered == 0 and self.silence > KEEPALIVE_SECONDS

    @property
    def host_is_deaf(self) -> bool:
        """Its kernel does not answer; once may be a packet that was lost."""
        return self.unanswered is not None and self.unanswered >= 2


KEEPALIVE_SECONDS = 5.0
"""By this time of silence the peer's kernel has been asked for a sign of life."""

ECC_XIDS = frozenset({48, 64, 94, 95, 140})
"""NVIDIA's numbers of memory errors that cannot be corrected, or no longer be mapped away."""

_NO_WAY = frozenset({"ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN"})


def _said(pattern: str) -> Callable[[Evidence], bool]:
    words = re.compile(pattern, re.IGNORECASE)
    return lambda e: words.search(e.said) is not None


_ecc_words = _said(r"\becc\b|uncorrectable|\bxid\b( \([^)]*\))?\W{0,4}(48|64|94|95|140)\b")
_oom_words = _said(r"out of memory|outofmemory|\boom\b|cudamalloc failed|failed to allocate")
_content_words = _said(
    r"content[ _](filter|policy|management policy|violation)|safety (system|polic)"
)
_overload_words = _said(
    r"overload|queue (is )?full|queue ?overflow|max ?queued|at capacity|server (is )?busy"
    r"|no (free |available )?slots?\b|kv[ -]?cache (is )?full|find (free )?space in the kv"
)  # fmt: skip
_rate_words = _said(r"rate.?limit|quota|too many requests")
_crash_words = _said(
    r"engine ?dead|engine ?core|engine (process|loop)|worker (died|proc)|cuda error|illegal memory"
    r"|device-side assert|segmentation fault|nccl|shutting down|core dumped"
)  # fmt: skip
_timeout_words = _said(r"connection ?time(d )?-?out|connect(ion)? timeout")


@dataclass(frozen=True, slots=True)
class Rule:
    """``because`` is for people: it is shown beside the cause."""

    blame: Blame
    because: str
    holds: Callable[[Evidence], bool]


# From what proves most to what proves least. First the hardware and the orchestrator, which see the
# engine from outside; then its own words; then what became of the process and of its host; last
# what the stream alone saw.
RULES: tuple[Rule, ...] = (
    Rule(
        Blame.ENGINE_ECC, "Its GPU reports memory errors that cannot be corrected.",
        lambda e: e.may_be_its_end and (e.ecc_errors > 0 or bool(e.xids & ECC_XIDS)),
    ),
    Rule(Blame.ENGINE_ECC, "The engine speaks of memory errors of its GPU.", _ecc_words),
    Rule(
        Blame.ENGINE_OOM, "Its container was killed for the memory it used.",
        lambda e: e.may_be_its_end and e.oom_killed,
    ),
    Rule(Blame.ENGINE_OOM, "The engine says that it ran out of memory.", _oom_words),
    Rule(
        Blame.CONTENT_VIOLATION, "The engine speaks of a content rule.",
        lambda e: not e.is_silence and not e.is_break and _content_words(e),
    ),
    Rule(Blame.ENGINE_OVERLOAD, "The engine says that it has more work than it can take.", _overload_words),
    Rule(
        Blame.RATE_LIMIT, "The engine limits the rate of requests.",
        lambda e: e.status == 429 or (e.seen is Cause.BUSY and _rate_words(e)),
    ),
    Rule(Blame.ENGINE_CRASH, "The engine says that its own process has failed.", _crash_words),
    Rule(
        Blame.ENGINE_CRASH, "A container of its pod ended in that moment.",
        lambda e: e.may_be_its_end and (bool(e.exit_code) or e.pod_restarts > 0 or e.pod_gone),
    ),
    Rule(
        Blame.ENGINE_CRASH, "Its GPU reports a fault of the driver or of the program on it.",
        lambda e: e.may_be_its_end and bool(e.xids),
    ),
    Rule(
        Blame.ENGINE_CRASH, "Its counters began anew: it is another process now.",
        lambda e: e.may_be_its_end and e.restarted,
    ),
    Rule(
        Blame.ENGINE_CRASH, "Its host answers, and nobody listens at its port any more.",
        lambda e: e.may_be_its_end and e.probe is Probe.REFUSED,
    ),
    Rule(Blame.ENGINE_OVERLOAD, "The engine wants no requests for now.", lambda e: e.seen is Cause.BUSY),
    Rule(
        Blame.TIMEOUT, "Something on the way, or the engine, gave up waiting.",
        lambda e: e.seen is Cause.BAD_STATUS and e.status in (408, 504),
    ),
    Rule(
        Blame.ENGINE_OVERLOAD, "The engine asks to be left alone for now.",
        lambda e: e.seen is Cause.BAD_STATUS and e.status in (425, 529),
    ),
    Rule(
        Blame.UNKNOWN, "The node refuses us: its address or its credential is not what it expects.",
        lambda e: e.seen is Cause.BAD_STATUS and (e.status or 500) < 500,
    ),
    Rule(
        Blame.UNKNOWN, "The engine works, but what it would have gone on with is not this answer.",
        lambda e: e.seen is Cause.MISMATCH,
    ),
    Rule(
        Blame.NETWORK_PARTITION, "The host of the node cannot be reached.",
        lambda e: (e.is_break or e.is_silence) and ((e.probe is Probe.UNREACHABLE and not e.host_answers) or e.errno in _NO_WAY),
    ),
    Rule(
        Blame.NETWORK_PARTITION, "The host of the node acknowledges nothing that is sent to it.",
        lambda e: (e.is_break or e.is_silence) and e.probe is not Probe.UP and e.host_is_deaf,
    ),
    Rule(
        Blame.NETWORK_PARTITION, "Streams on other nodes failed in the same moment: what they share is the network.",
        lambda e: (e.is_break or e.is_silence) and e.nodes_failed > 0 and e.probe is Probe.NOT_YET,
    ),
    Rule(
        Blame.ENGINE_OVERLOAD, "No connection in time, though the node works: it accepts too slowly.",
        lambda e: e.seen is Cause.REFUSED and e.probe is Probe.UP and _timeout_words(e),
    ),
    Rule(
        Blame.NETWORK_PARTITION, "No connection in time, and nobody has heard from the node since.",
        lambda e: e.seen is Cause.REFUSED and _timeout_words(e),
    ),
    Rule(
        Blame.ENGINE_FROZEN, "It accepts connections and answers nobody.",
        lambda e: e.is_silence and e.probe is Probe.NO_ANSWER,
    ),
    Rule(
        Blame.ENGINE_OVERLOAD, "It worked for others while this request waited in its queue.",
        lambda e: e.seen is Cause.NO_FIRST_TOKEN and bool(e.waiting) and e.works_for_others,
    ),
    Rule(
        Blame.TIMEOUT, "It worked for others, and not for this stream within the limit.",
        lambda e: e.is_silence and e.works_for_others,
    ),
    Rule(
        Blame.ENGINE_FROZEN, "It fell silent with its connections open; that its health page answers proves nothing.",
        lambda e: e.is_silence,
    ),
    Rule(
        Blame.NETWORK_RESET, "The connection broke under a process that lives on.",
        lambda e: e.seen in (Cause.RESET, Cause.CLOSED) and e.probe is Probe.UP,
    ),
    Rule(
        Blame.ENGINE_CRASH, "The connection broke, and the engine does not work any more.",
        lambda e: e.is_break and e.probe in (Probe.NO_ANSWER, Probe.ERROR),
    ),
    Rule(
        Blame.ENGINE_CRASH, "All its streams broke off in the same moment, and those of other nodes did not.",
        lambda e: e.is_break and e.all_broke,
    ),
    Rule(
        Blame.NETWORK_RESET, "The connection was reset; nothing else speaks against the engine.",
        lambda e: e.seen is Cause.RESET,
    ),
    Rule(
        Blame.ENGINE_CRASH, "The stream ended in the middle: so the kernel closes for a process that ends.",
        lambda e: e.seen is Cause.CLOSED,
    ),
    Rule(Blame.ENGINE_CRASH, "Nobody listened at its port.", lambda e: e.seen is Cause.REFUSED),
    Rule(
        Blame.ENGINE_CRASH, "The engine gave the request up by itself.",
        lambda e: e.seen in (Cause.ENGINE_ERROR, Cause.ABORTED, Cause.MALFORMED, Cause.BAD_STATUS),
    ),
    Rule(Blame.UNKNOWN, "Nothing speaks.", lambda e: True),
)  # fmt: skip

NO_INTERRUPTIONS = frozenset({Cause.REHEARSAL, Cause.MIGRATED})
"""Ends of attempts that somebody wanted."""


def attribute(evidence: Evidence) -> tuple[Blame, dict[str, Any]] | None:
    """The cause of a failed attempt, and the evidence as it is stored; None: no interruption.

    The stored dict has ``because`` (the reason of the rule) and what of the evidence says anything:

        attribute(Evidence(seen=Cause.RESET, probe=Probe.REFUSED))
        → (Blame.ENGINE_CRASH, {"because": "Its host answers, …", "seen": "connection_reset", "probe": "refused"})
    """
    if evidence.seen in NO_INTERRUPTIONS:
        return None
    rule = next(rule for rule in RULES if rule.holds(evidence))
    return rule.blame, {"because": rule.because, **evidence.as_stored()}


_ENDS: dict[str, tuple[Blame, str]] = {
    "client_stop": (Blame.CLIENT_STOP, "Somebody with the right to do so stopped it."),
    "client_gone": (Blame.CLIENT_GONE, "Its reader left and did not come back within the grace period."),
    "abandoned": (Blame.CLIENT_GONE, "It was suspended, and its reader did not come back in time."),
    "gateway_crash": (Blame.GATEWAY_CRASH, "The gateway process that owned it died."),
    "runner_lost": (Blame.GATEWAY_CRASH, "The gateway process that owned it had stopped working on it."),
    "gateway_shutdown": (Blame.GATEWAY_SHUTDOWN, "The gateway process that owned it was shut down."),
    "answer_timeout": (Blame.TIMEOUT, "The answer took longer than MAX_ANSWER_SECONDS."),
    "no_healthy_node": (Blame.TIMEOUT, "No node could take it within NODE_WAIT_SECONDS."),
    "failover_off": (Blame.UNKNOWN, "Its engine failed, and an operator has switched failover off."),
    "failover_exhausted": (Blame.UNKNOWN, "Too many attempts failed in a row, and none of them was an interruption."),
    "seam_refused": (Blame.UNKNOWN, "It could not be continued without changing what was delivered."),
    "journal_unavailable": (Blame.TIMEOUT, "The token log could not be written for too long."),
    "rejected_by_engine": (Blame.UNKNOWN, "The engine refused the request itself; nothing was interrupted."),
    "content_violation": (Blame.CONTENT_VIOLATION, "A content rule ended it."),
    "rate_limit_exceeded": (Blame.RATE_LIMIT, "It was over its rate limit."),
    # The gateway's own faults: to its reader they are what a crash of it is.
    "log_corrupt": (Blame.GATEWAY_CRASH, "The stored answer does not match its digest."),
    "request_unreadable": (Blame.GATEWAY_CRASH, "The stored request cannot be read any more."),
    "journal_refused": (Blame.GATEWAY_CRASH, "What it produced could not be stored."),
    "internal_error": (Blame.GATEWAY_CRASH, "The gateway failed in a way that nobody foresaw."),
}  # fmt: skip
_BLAMES = frozenset(blame.value for blame in Blame)


def attribute_end(what: str) -> tuple[Blame, dict[str, Any]]:
    """The cause of a session's end that no failed attempt explains.

    ``what``: why it ended, in the runtime's words, or the code of its error. Idempotent: a
    ``Blame`` comes back as it is.
    """
    if what in _ENDS:
        blame, because = _ENDS[what]
    elif what in _BLAMES:
        return Blame(what), {}
    else:
        blame, because = Blame.UNKNOWN, "The request itself cannot be answered."
    return blame, {"because": because, "seen": what}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    return round(value, 3) if isinstance(value, float) else value
