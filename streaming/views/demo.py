"""The first page: a chat with the demo nodes in demo mode, else how to call the gateway."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST, require_safe

from streaming.conf import conf
from streaming.models import InferenceNode
from streaming.services import demo_nodes
from streaming.services.demo_tokens import MAX_AGE, mint_demo_token

MODEL = "chat-default"
MAX_TOKENS = 400
VISITOR_COOKIE = "unbroken_visitor"
VISITOR_SALT = "unbroken.demo.visitor"
SAMPLES = (
    "Write a long story about a lighthouse keeper",
    "Explain in detail how rainbows form",
    "Write a detailed guide to ten animals of the sea",
)
GREETING = (
    "Hello! Ask for something long, then reload this page. (I am a tiny model: watch that I go on, "
    "rather than what I say.)"
)
# Everything comes from this server, and nothing is inline.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

View = Callable[..., HttpResponse]


def demo_only(view: View) -> View:
    """Without demo mode there is no such page."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not conf().demo:
            raise Http404
        return view(request, *args, **kwargs)

    return guarded


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """The chat page carries a token for its visitor, so it is never cached."""
    response = _chat(request) if conf().demo else _landing(request)
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    return response


@require_safe
@never_cache
@demo_only
def widget(request: HttpRequest) -> HttpResponse:
    """The chat widget as a product's page has it."""
    visitor = _visitor(request) or _new_visitor()
    context = {
        "token": mint_demo_token(visitor),
        "model": MODEL,
        "greeting": GREETING,
        "widget_url": request.build_absolute_uri(static("streaming/widget.js")),
    }
    response = render(request, "streaming/widget_demo.html", context)
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    _remember(response, visitor)
    return response


@require_safe
@never_cache
@demo_only
def nodes(request: HttpRequest) -> HttpResponse:
    """The engine nodes and how they are; ``killable`` is null for nodes that are not ours to kill."""
    children = demo_nodes.read_children()
    known = [
        (node, demo_nodes.is_killable(node, children))
        for node in InferenceNode.objects.order_by("name")
    ]
    rows = [
        {
            "name": node.name,
            "health": node.health,
            "reason": node.health_reason,
            "model": ", ".join(node.models_served),
            "dialect": node.get_dialect_display(),
            "admin_state": node.admin_state,
            "killable": killable,
        }
        for node, killable in known
        # What is drained and not ours is no engine behind this page: sample data has such nodes.
        if killable is not None or node.admin_state != InferenceNode.Admin.DRAINED
    ]
    return JsonResponse(rows, safe=False)


@require_POST
@csrf_protect
@demo_only
def kill_node(request: HttpRequest, name: str) -> HttpResponse:
    """SIGKILL one of the nodes that ``serve`` has started. 409 when its process is gone already."""
    node = InferenceNode.objects.filter(name=name).first()
    if node is None:
        raise Http404
    if not demo_nodes.kill(node, by=f"demo:{_visitor(request) or 'visitor'}"):
        return JsonResponse(
            {"error": f"{name} has no process here that could be killed."}, status=409
        )
    return JsonResponse({"killed": name})


def _chat(request: HttpRequest) -> HttpResponse:
    visitor = _visitor(request) or _new_visitor()
    config = {
        "token": mint_demo_token(visitor),
        "csrf": get_token(request),
        "model": MODEL,
        "maxTokens": MAX_TOKENS,
        "nodes": reverse("demo-nodes"),
    }
    response = render(request, "streaming/chat.html", {"config": config, "samples": SAMPLES})
    _remember(response, visitor)
    return response


def _new_visitor() -> str:
    return f"visitor-{secrets.token_hex(6)}"


def _remember(response: HttpResponse, visitor: str) -> None:
    response.set_signed_cookie(
        VISITOR_COOKIE,
        visitor,
        salt=VISITOR_SALT,
        max_age=MAX_AGE,
        httponly=True,
        samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )


def _visitor(request: HttpRequest) -> str | None:
    """The name that an earlier page gave to whoever asks."""
    return request.get_signed_cookie(VISITOR_COOKIE, None, salt=VISITOR_SALT, max_age=MAX_AGE)


def _landing(request: HttpRequest) -> HttpResponse:
    base_url = request.build_absolute_uri("/v1")
    return render(request, "streaming/landing.html", {"base_url": base_url})
