"""The errors of the streaming domain: one shallow tree, translated once at the edge.

Every class carries what the edge needs: a stable ``code`` (the OpenAI error object's ``code``),
the HTTP status before the headers are out, and whether another try can finish the answer.
"""

from __future__ import annotations

from typing import Any, ClassVar


class GatewayError(Exception):
    """Something the client must be told, in words meant for the client."""

    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    http_status: ClassVar[int] = 500
    resumable: bool = False
    """The fleet's or the gateway's trouble, not the request's: a session whose runner ends so is
    suspended, and goes on when its reader comes back (``runner.StreamRunner._broken_off``)."""
    usual_retry_after: ClassVar[float | None] = None
    """Seconds, where nobody knows better."""

    def __init__(
        self, message: str = "", *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message or (self.__doc__ or self.code).splitlines()[0])
        self.param = param
        self.retry_after = self.usual_retry_after if retry_after is None else retry_after

    def as_openai(self) -> dict[str, Any]:
        """The OpenAI error object: ``{"error": {message, type, param, code, resumable}}``."""
        return {
            "error": {
                "message": str(self),
                "type": self.type,
                "param": self.param,
                "code": self.code,
                "resumable": self.resumable,
            }
        }


class Unforeseen(GatewayError):
    """The gateway failed to go on with this answer."""

    resumable = True


class InvalidRequest(GatewayError):
    """The request is malformed."""

    code = "invalid_request"
    type = "invalid_request_error"
    http_status = 400


class UnsupportedParameter(InvalidRequest):
    """A parameter that this gateway does not support yet."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"


class AuthenticationFailed(GatewayError):
    """The API key is missing, unknown, expired or revoked."""

    code = "invalid_api_key"
    type = "authentication_error"
    http_status = 401


class TokenExpired(AuthenticationFailed):
    """The embed token has expired: ask your backend for a new one."""

    code = "token_expired"


class NotPermitted(GatewayError):
    """This credential may not do that."""

    code = "not_permitted"
    type = "permission_error"
    http_status = 403


class OriginNotAllowed(NotPermitted):
    """Pages of this origin may not use this gateway."""

    code = "origin_not_allowed"


class CsrfFailed(NotPermitted):
    """A request with a cookie needs the page's CSRF token."""

    code = "csrf_failed"


class NotFound(GatewayError):
    """There is nothing here for you."""

    code = "not_found"
    type = "invalid_request_error"
    http_status = 404


class ModelNotFound(NotFound):
    """The model does not exist or you do not have access to it."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """This method is not allowed here."""

    code = "method_not_allowed"
    type = "invalid_request_error"
    http_status = 405


class RequestTooLarge(GatewayError):
    """The request body is larger than this gateway accepts."""

    code = "request_too_large"
    type = "invalid_request_error"
    http_status = 413


class RateLimited(GatewayError):
    """Too many requests."""

    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    http_status = 429


class QuotaExceeded(GatewayError):
    """The limit of this period has been reached."""

    code = "insufficient_quota"
    type = "insufficient_quota"
    http_status = 429


class Overloaded(GatewayError):
    """The gateway has as many streams as it can carry."""

    code = "overloaded"
    http_status = 503


class ShuttingDown(GatewayError):
    """This gateway process is shutting down; try again."""

    code = "shutting_down"
    http_status = 503


class Interrupted(ShuttingDown):
    """This gateway process is shutting down; the answer goes on with its session elsewhere."""

    resumable = True


class NoHealthyNode(GatewayError):
    """No engine node that serves this model is healthy."""

    code = "no_healthy_node"
    http_status = 503
    usual_retry_after = 5
    resumable = True


class FailoverExhausted(GatewayError):
    """The answer could not be continued: too many engines failed in a row."""

    code = "failover_exhausted"
    http_status = 502
    resumable = True


class FailoverOff(GatewayError):
    """An operator has switched failover off for this model or node."""

    code = "failover_off"
    http_status = 502
    resumable = True


class SeamRefused(GatewayError):
    """The answer could not be continued without changing what was already delivered."""

    code = "seam_refused"
    http_status = 502


class AnswerTimeout(GatewayError):
    """The answer took longer than one answer may take."""

    code = "answer_timeout"
    http_status = 504


class EngineRejected(InvalidRequest):
    """The engine refused the request as invalid."""

    code = "engine_rejected"


class JournalUnavailable(GatewayError):
    """The token log cannot be written; nothing is shown that could be lost."""

    code = "journal_unavailable"
    http_status = 503
    resumable = True


class SessionLost(GatewayError):
    """This process no longer owns the session."""

    code = "session_lost"
    http_status = 503
    resumable = True


class SessionPurged(GatewayError):
    """The text of this session has been deleted."""

    code = "session_purged"
    type = "invalid_request_error"
    http_status = 410


class CursorBeyondLog(GatewayError):
    """The cursor is beyond the end of the log."""

    code = "cursor_beyond_log"
    type = "invalid_request_error"
    http_status = 409


class IdempotencyMismatch(GatewayError):
    """This Idempotency-Key was used with another request."""

    code = "idempotency_mismatch"
    type = "invalid_request_error"
    http_status = 409


def error_from_openai(error: dict[str, Any]) -> GatewayError:
    """The error behind a stored error object, so that it can be raised again with its status."""
    kind = _by_code().get(str(error.get("code")), GatewayError)
    raised = kind(str(error.get("message", "")), param=error.get("param"))
    raised.resumable = bool(error.get("resumable"))
    return raised


def _by_code() -> dict[str, type[GatewayError]]:
    found: dict[str, type[GatewayError]] = {}
    waiting: list[type[GatewayError]] = [GatewayError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found
