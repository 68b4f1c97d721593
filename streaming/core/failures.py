"""Why an attempt ended, and what that says about the node.

One attempt fails with an ``AttemptFailed``; a request that no engine would take is
``RejectedByEngine``. Both are raised by the dialects and read by the runner only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class Cause(enum.Enum):
    """What was seen. Which of the operator's causes lies behind it is for attribution to say."""

    REFUSED = "refused"  # no connection
    RESET = "connection_reset"
    CLOSED = "closed_early"  # the stream ended without a finish
    MALFORMED = "malformed_event"
    ENGINE_ERROR = "engine_error"  # an error object with a 5xx code inside the stream
    ABORTED = "engine_abort"  # finish_reason abort or error
    BAD_STATUS = "bad_status"  # 5xx, 401, 403, 404, 408, 409, 425, 3xx before the stream
    BUSY = "engine_busy"  # 429 or 503
    NO_FIRST_TOKEN = "no_first_token"
    STALLED = "stalled"
    MISMATCH = "seam_mismatch"  # what the node echoed or regenerated is not what we hold
    REHEARSAL = "rehearsal"  # a test key asked for it
    MIGRATED = "migrated"  # its node is being drained: not a failure at all


class AttemptFailed(Exception):
    """The node did not finish the answer; another may.

    ``evidence``: how the connection ended, as far as the system could say (``engines.sockets``).
    """

    def __init__(
        self,
        cause: Cause,
        detail: str = "",
        *,
        retry_after: float | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{cause.value}: {detail}" if detail else cause.value)
        self.cause = cause
        self.detail = detail[:500]
        self.retry_after = retry_after
        self.evidence: dict[str, Any] = dict(evidence or {})


class RejectedByEngine(Exception):
    """The engine says the request itself is wrong (400, 413, 422): no other node would take it.

    ``in_stream``: it said so after its 200.
    """

    def __init__(self, status: int, message: str, *, in_stream: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.in_stream = in_stream
        self.message = message[:500]
