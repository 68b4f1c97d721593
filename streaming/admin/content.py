"""What was asked and answered: personal data, shown only to who may see it."""

from __future__ import annotations

import json

from django.http import HttpRequest

from streaming.admin.audited import actor_of
from streaming.models import StreamSession, TokenCheckpoint
from streaming.services import audit

# Nobody is given this permission yet, so it is the superusers'; Django grants them everything.
PERMISSION = "streaming.reveal_content"
MASKED = "Hidden: seeing content takes the permission to view it."
SHOWN_CHARACTERS = 100_000


def may_view_content(request: HttpRequest) -> bool:
    return request.user.has_perm(PERMISSION)


def note_view(request: HttpRequest, session: StreamSession) -> None:
    """Have it audited that somebody sees the content of a session; before it is shown."""
    audit.announce(
        "content.view",
        actor=actor_of(request),
        subject=f"session:{session.pk}",
        tenant_id=session.tenant_id,
        session_id=session.pk,
        reference=session.reference,
    )


def answer_text(session: StreamSession) -> str:
    """The answer as far as it is in the log."""
    rows = TokenCheckpoint.objects.of(session).order_by("first_seq")
    return _shown(b"".join(bytes(text) for text in rows.values_list("text", flat=True)).decode())


def request_text(session: StreamSession) -> str:
    """The client's request, indented."""
    body = bytes(session.request)
    try:
        text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except ValueError:
        text = body.decode("utf-8", "replace")
    return _shown(text)


def _shown(text: str) -> str:
    """Without lone surrogates (JSON can spell them, UTF-8 cannot), and not without end."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}\n… and {len(text) - SHOWN_CHARACTERS} characters more"
