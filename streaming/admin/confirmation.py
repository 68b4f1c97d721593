"""Actions that ask before they act, through a service, and leave a line in the object's history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from streaming.admin.audited import actor_of
from streaming.services.refused import Refused

Action = Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]


def confirmed_action(
    name: str,
    *,
    description: str,
    question: str,
    done: str,
    act: Callable[..., Any],
    signed: bool = False,
    tells: bool = False,
    permission: str = "change",
    refusals: tuple[type[Exception], ...] = (Refused,),
) -> Action:
    """An admin action; ``act`` gets each chosen object once somebody has said yes.

    ``done`` is what the history and the message say, in the past tense. ``signed``: ``act`` also
    takes ``by``, the actor who has said it. ``tells``: what it returns is shown to them, and kept
    nowhere. ``permission``: as in Django's own actions, the model
    admin's ``has_<permission>_permission`` is asked. ``refusals``: what ``act`` says no with.
    """

    @admin.action(description=description, permissions=[permission])
    def action(
        model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            context = {
                **model_admin.admin_site.each_context(request),
                "title": description,
                "question": question,
                "objects": queryset,
                "action": name,
                "checkbox_name": ACTION_CHECKBOX_NAME,
                "opts": model_admin.model._meta,
            }
            return TemplateResponse(request, "admin/streaming/confirm.html", context)
        for target in queryset:
            try:
                said = act(target, **({"by": actor_of(request)} if signed else {}))
            except refusals as exc:
                messages.error(request, str(exc))
            else:
                model_admin.log_change(request, target, done)
                messages.success(request, f"{target}: {done}")
                if tells:
                    messages.warning(request, f"{target}: {said}")
        return None

    action.__name__ = name
    return action
