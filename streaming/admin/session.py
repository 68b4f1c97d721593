"""Sessions: found by what people hold in hand, explained on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, reverse
from django.urls import path as path_of

from streaming.admin import content, session_tools
from streaming.admin.audited import actor_of
from streaming.admin.bundle import bundle_of
from streaming.admin.case import case_of
from streaming.admin.days import SparseDates
from streaming.admin.finance import finance
from streaming.admin.pages import Tool, require
from streaming.admin.plain_text import named
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.session_page import context_of
from streaming.admin.session_search import SearchSessions
from streaming.admin.session_tools import WithSessionTools
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local
from streaming.models import StreamSession
from streaming.services import audit

EXPORT = "streaming.export_sessions"


@admin.register(StreamSession)
class StreamSessionAdmin(OfTenant, SearchSessions, WithSessionTools, ReadOnlyAdmin):
    add_pages = True
    actions = session_tools.ACTIONS
    list_display = [
        "reference", "tenant", "end_user", "model", "state", "tokens", "failovers", "cause",
        "created",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = ["state"]  # what went wrong has a list, and indexes, of its own
    date_hierarchy = "created_at"
    ordering = ["-created_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The bodies are large; only who reveals the content of one session needs its own.
        rows = super().get_queryset(request)
        return SparseDates(self.model, rows.query).defer("request", "prompt_token_ids")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        rows = self.get_queryset(request).select_related(
            "tenant", "api_key__tenant", "owner", "fence", "incident", "looked_into__assignee"
        )
        try:
            return rows.filter(pk=UUID(object_id)).first()
        except ValueError:
            return None

    def get_urls(self) -> list[Any]:
        def page(path: str, view: Any, name: str) -> URLPattern:
            wrapped = self.admin_site.admin_view(view)
            return path_of(path, wrapped, name=f"streaming_streamsession_{name}")

        return [
            page("<uuid:session_id>/reveal/", self.reveal_view, "reveal"),
            page("<uuid:session_id>/evidence/", self.evidence_view, "evidence"),
            page("<uuid:session_id>/evidence.json", self.evidence_json_view, "evidence_json"),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: Any) -> Sequence[Tool]:
        """Above the page of a session."""
        tools = [*super().tools(request, obj)]
        if request.user.has_perm(EXPORT):
            for words, name in (("Evidence to print", ""), ("Evidence as JSON", "_json")):
                url = reverse(f"admin:streaming_streamsession_evidence{name}", args=[obj.pk])
                tools.append(Tool(words, url))
        history = reverse("admin:streaming_streamsession_history", args=[obj.pk])
        return [*tools, Tool("History", history)]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page of one session, without its content."""
        session = self._session(request, unquote(object_id))
        if session is None:
            messages.warning(request, f"There is no session {named(object_id[:80])}.")
            return HttpResponseRedirect(reverse("admin:streaming_streamsession_changelist"))
        if request.method == "POST":  # there is nothing to change
            raise PermissionDenied
        return self._shown(request, session, content.asked(request, session), revealed=False)

    def reveal_view(self, request: HttpRequest, session_id: UUID) -> HttpResponse:
        """The page of a session with its content, in answer to a reason; without one, as ever."""
        session = self._found(request, session_id)
        form = content.asked(request, session)
        if form is None:
            raise PermissionDenied
        revealed = request.method == "POST" and form.is_valid()
        if revealed:
            content.reveal(request, session, form.cleaned_data["reason"])
        return self._shown(request, session, form, revealed=revealed)

    def _shown(
        self, request: HttpRequest, session: StreamSession, form: Any, *, revealed: bool
    ) -> HttpResponse:
        page = self.page(
            request,
            "admin/streaming/session.html",
            f"Session {session.reference}",
            session,
            tools=self.tools(request, session),
            reveal_form=form,
            may_export=request.user.has_perm(EXPORT),
            **context_of(request, case_of(session), revealed=revealed),
        )
        return _unstored(page) if revealed else page

    def evidence_view(self, request: HttpRequest, session_id: UUID) -> HttpResponse:
        """The evidence as a page to print; masked."""
        require(request, EXPORT)
        session = self._found(request, session_id)
        self._note_export(request, session, "page", with_content=False)
        return self.page(
            request,
            "admin/streaming/session_evidence.html",
            f"Evidence of session {session.reference}",
            session,
            **context_of(request, case_of(session), revealed=False),
        )

    def evidence_json_view(self, request: HttpRequest, session_id: UUID) -> HttpResponse:
        """The evidence as a download; with content only in answer to a reason."""
        require(request, EXPORT)
        session = self._found(request, session_id)
        with_content = request.method == "POST"
        if with_content:
            form = content.asked(request, session)
            if form is None or not form.is_valid():
                raise PermissionDenied
            content.reveal(request, session, form.cleaned_data["reason"])
        self._note_export(request, session, "json", with_content=with_content)
        told = bundle_of(
            case_of(session),
            with_content=with_content,
            with_billing=bool(finance().session_panel(request, session)),
        )
        response = JsonResponse(told, json_dumps_params={"indent": 2})
        name = f"session-{session.reference}-{session.pk}.json"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return _unstored(response)

    def _session(self, request: HttpRequest, session_id: str) -> StreamSession | None:
        """With everything that its page names; None: there is none that the viewer may see."""
        session = self.get_object(request, session_id)
        if not self.has_view_permission(request, session):
            raise PermissionDenied
        return session

    def _found(self, request: HttpRequest, session_id: UUID) -> StreamSession:
        session = self._session(request, str(session_id))
        if session is None:
            raise Http404("no such session")
        return session

    def _note_export(
        self, request: HttpRequest, session: StreamSession, form: str, *, with_content: bool
    ) -> None:
        """Have it audited, before it is handed out."""
        audit.announce(
            "evidence.export",
            actor=actor_of(request),
            subject=f"session:{session.pk}",
            tenant_id=session.tenant_id,
            session_id=session.pk,
            reference=session.reference,
            form=form,
            content=with_content,
        )

    @admin.display(ordering="completion_tokens")
    def tokens(self, session: StreamSession) -> int:
        return session.completion_tokens

    @admin.display(ordering="created_at", description="created")
    def created(self, session: StreamSession) -> str:
        return local(session.created_at)


def _unstored(response: HttpResponse) -> HttpResponse:
    """Have no browser and no proxy keep it."""
    response["Cache-Control"] = "private, no-store"
    return response
