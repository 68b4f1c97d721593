"""What the support desk shows of money. Billing connects itself here; streaming knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from streaming.admin.pages import Tool
from streaming.models import Incident, StreamSession


@dataclass(frozen=True, slots=True)
class Billed:
    """What a session has come to so far: ``tokens`` of its answer, and the amount."""

    tokens: int
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One line of the audit log about a session. ``data``: as it is told, in words."""

    seq: int
    at: str
    actor: str
    action: str
    data: str


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of several sessions, in words: one for each currency. ``credited``: what people gave back."""

    charged: Sequence[str]
    credited: Sequence[str]


class Finance(Protocol):
    """Panels are HTML, empty for who may not see them; so are lists of tools."""

    def billed(self, session_ids: Iterable[UUID]) -> Mapping[UUID, Billed]:
        """Of those that were settled; one query."""

    def session_panel(self, request: HttpRequest, session: StreamSession) -> SafeString: ...

    def session_tools(self, request: HttpRequest, session: StreamSession) -> Sequence[Tool]: ...

    def incident_panel(self, request: HttpRequest, incident: Incident) -> SafeString: ...

    def incident_tools(self, request: HttpRequest, incident: Incident) -> Sequence[Tool]: ...

    def incident_amounts(
        self, request: HttpRequest, sessions: QuerySet[StreamSession]
    ) -> Amounts | None:
        """What these sessions of an incident came to; None for who may not see it."""

    def audit_rows(self, session_id: UUID) -> Sequence[AuditRow]: ...

    def evidence(self, session_id: UUID) -> dict[str, Any]:
        """For the evidence bundle: JSON, amounts as strings; empty when it was never settled."""


class NoFinance:
    """Nobody counts."""

    def billed(self, session_ids: Iterable[UUID]) -> Mapping[UUID, Billed]:
        return {}

    def session_panel(self, request: HttpRequest, session: StreamSession) -> SafeString:
        return SafeString("")

    def session_tools(self, request: HttpRequest, session: StreamSession) -> Sequence[Tool]:
        return ()

    def incident_panel(self, request: HttpRequest, incident: Incident) -> SafeString:
        return SafeString("")

    def incident_tools(self, request: HttpRequest, incident: Incident) -> Sequence[Tool]:
        return ()

    def incident_amounts(
        self, request: HttpRequest, sessions: QuerySet[StreamSession]
    ) -> Amounts | None:
        return None

    def audit_rows(self, session_id: UUID) -> Sequence[AuditRow]:
        return ()

    def evidence(self, session_id: UUID) -> dict[str, Any]:
        return {}


_connected: Finance = NoFinance()


def connect(finance: Finance) -> None:
    """To be called once, when the apps are ready."""
    global _connected
    _connected = finance


def finance() -> Finance:
    """Whoever is connected."""
    return _connected
