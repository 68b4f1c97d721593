"""Sessions: found by what people hold in hand, explained on one page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from streaming.admin import content, session_tools
from streaming.admin.days import SparseDates
from streaming.admin.evidence import ByCause, in_words
from streaming.admin.inlines import AttemptInline, CheckpointInline, EventInline
from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.session_search import SearchSessions
from streaming.admin.session_tools import WithSessionTools
from streaming.admin.tenancy import OfTenant
from streaming.admin.times import local
from streaming.models import StreamSession


class Interrupted(admin.SimpleListFilter):
    """Whether an engine failed under the answer."""

    title = "interruptions"
    parameter_name = "interrupted"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Interrupted"), ("no", "Uninterrupted")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "yes":
            return queryset.filter(failovers__gt=0)
        return queryset.filter(failovers=0) if self.value() == "no" else queryset


@admin.register(StreamSession)
class StreamSessionAdmin(OfTenant, SearchSessions, WithSessionTools, ReadOnlyAdmin):
    add_pages = True
    actions = session_tools.ACTIONS
    list_display = [
        "reference", "tenant", "end_user", "model", "state", "tokens", "failovers", "cause",
        "created",
    ]  # fmt: skip
    list_select_related = ["tenant"]
    list_filter = ["state", Interrupted, ByCause]
    date_hierarchy = "created_at"
    ordering = ["-created_at"]
    inlines = [AttemptInline, EventInline, CheckpointInline]
    change_form_template = "admin/streaming/session_form.html"
    fieldsets = [
        (None, {"fields": [("reference", "id"), ("state", "finish_reason"), ("cause", "error_code"), "because"]}),
        ("Who asked", {"fields": ["tenant", "api_key", "end_user", "request_id", "protocol"]}),
        ("What was asked", {"fields": [("model", "model_requested"), "seed"]}),
        ("Course", {
            "fields": [
                ("created_at", "first_token_at", "ended_at"), ("prompt_tokens", "completion_tokens"),
                ("failovers", "discarded_tokens"), ("durable_seq", "delivered_seq"), ("owner", "epoch"),
            ],
        }),
        ("Content", {"fields": ["request_shown", "answer_shown"], "classes": ["collapse"]}),
    ]  # fmt: skip
    readonly_fields = [
        "id", "because", "durable_seq", "delivered_seq", "epoch", "request_shown", "answer_shown",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The bodies are large; only the page of one session needs its own.
        rows = super().get_queryset(request)
        return SparseDates(self.model, rows.query).defer("request", "prompt_token_ids")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        session = super().get_object(request, object_id, from_field)
        if session is not None:
            # The methods below have no request; whether they may show content, only it can tell.
            session.revealed = getattr(request, "revealed", None) == session.pk
        return session

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.reveal_view)
        reveal = path("<uuid:session_id>/reveal/", view, name="streaming_streamsession_reveal")
        return [reveal, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        session = self.get_object(request, unquote(object_id))
        form = content.asked(request, session) if session is not None else None
        context = {"reveal_form": form, **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def reveal_view(self, request: HttpRequest, session_id: UUID) -> HttpResponse:
        """The page of a session with its content, in answer to a reason; without one, as ever."""
        session = self.get_object(request, str(session_id))
        if session is None:
            raise Http404("no such session")
        if not self.has_view_permission(request, session):
            raise PermissionDenied
        form = content.asked(request, session)
        if form is None:
            raise PermissionDenied
        if request.method == "POST" and form.is_valid():
            content.reveal(request, session, form.cleaned_data["reason"])
            request.revealed = session.pk  # type: ignore[attr-defined]
        request.method = "GET"  # what Django does with the rest
        return self.change_view(request, str(session_id), "", {"reveal_form": form})

    @admin.display(ordering="completion_tokens")
    def tokens(self, session: StreamSession) -> int:
        return session.completion_tokens

    @admin.display(ordering="created_at", description="created")
    def created(self, session: StreamSession) -> str:
        return local(session.created_at)

    @admin.display(description="evidence")
    def because(self, session: Any) -> str:
        revealed = getattr(session, "revealed", False)
        evidence = session.evidence
        return in_words(evidence if revealed else content.without_words(evidence))

    @admin.display(description="request")
    def request_shown(self, session: StreamSession) -> SafeString | str:
        return self._content(session, content.request_text)

    @admin.display(description="answer")
    def answer_shown(self, session: StreamSession) -> SafeString | str:
        return self._content(session, content.answer_text)

    @admin.display(description="durable up to")
    def durable_seq(self, session: StreamSession) -> int:
        return session.fence.durable_seq

    @admin.display(description="delivered up to")
    def delivered_seq(self, session: StreamSession) -> int:
        return session.fence.delivered_seq

    @admin.display(description="epoch")
    def epoch(self, session: StreamSession) -> int:
        return session.fence.epoch

    def _content(self, session: Any, read: Any) -> SafeString | str:
        if not getattr(session, "revealed", False):
            return content.MASKED
        return format_html('<div class="unbroken-content">{}</div>', read(session))
