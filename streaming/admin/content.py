"""What was asked and answered: personal data. Hidden until somebody asks for it, and says why.

Nothing shows it by itself, to superusers neither: who may see it sends the page of a session a
reason (``RevealForm``), ``reveal`` has that audited, and the answer to that one request shows it. What
engines said of a failure may quote it, and is hidden with it (``words``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from streaming.admin.audited import actor_of
from streaming.admin.tenancy import may_see
from streaming.models import StreamSession
from streaming.services import audit

PERMISSION = "streaming.reveal_content"
SUPPORT = ("streaming.view_streamsession", "streaming.review_session")
"""Who has both is support, and may see the content of tenants that allow it."""

WORDS_MASKED = "Hidden: the engine’s words may quote content."
REASON = (10, 300)
"""The shortest and the longest reason, in characters."""


class RevealForm(forms.Form):
    """Why somebody has to see the content of a session."""

    reason = forms.CharField(
        label="Why do you have to see it?",
        min_length=REASON[0],
        max_length=REASON[1],
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text="Goes into the audit log, with your name. No personal data, no content.",
    )

    def clean_reason(self) -> str:
        reason: str = self.cleaned_data["reason"]
        if _seen(reason) < REASON[0]:
            raise forms.ValidationError(f"Write {REASON[0]} characters or more that can be read.")
        return reason


def may_reveal(request: HttpRequest, session: StreamSession) -> bool:
    """Whether who asks may have the content of this session shown, with a reason."""
    user = request.user
    if not may_see(user, session.tenant_id):
        return False
    return user.has_perm(PERMISSION) or (
        user.has_perms(SUPPORT) and session.tenant.support_sees_content
    )


def reveal(request: HttpRequest, session: StreamSession, reason: str) -> None:
    """Have it audited that somebody sees the content of a session; to be called before it is shown.

    Raises ``PermissionDenied`` for who may not, and ``ValueError`` for a reason that says nothing.
    """
    if not may_reveal(request, session):
        raise PermissionDenied
    reason = " ".join(reason.split())
    if not REASON[0] <= _seen(reason) <= len(reason) <= REASON[1]:
        raise ValueError(f"a reason has {REASON[0]} to {REASON[1]} characters")
    audit.announce(
        "content.view",
        actor=actor_of(request),
        subject=f"session:{session.pk}",
        tenant_id=session.tenant_id,
        session_id=session.pk,
        reference=session.reference,
        reason=reason,
    )


def _seen(reason: str) -> int:
    """How many of its characters somebody who reads the log will see; none without a letter."""
    if not any(character.isalnum() for character in reason):
        return 0
    return sum(not unicodedata.category(character).startswith("C") for character in reason)


def asked(request: HttpRequest, session: StreamSession) -> RevealForm | None:
    """The form for a page that shows a session; None for who may not see its content.

    Where the page was sent a good reason, ``form.is_valid()``: it calls ``reveal`` and shows all.
    """
    if not may_reveal(request, session):
        return None
    return RevealForm(request.POST if request.method == "POST" else None)


def words(said: str, revealed: bool) -> str:
    """What an engine said of a failure, for who has had the content of its session revealed."""
    return said if revealed or not said else WORDS_MASKED


def without_words(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Evidence, less what the engine said."""
    return {name: value for name, value in evidence.items() if name != "said"}
