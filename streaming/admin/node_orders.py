"""What operators order of nodes: as actions on the list, and as buttons on a node's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import path, reverse

from streaming.admin.audited import actor_of
from streaming.admin.confirmation import Action, confirmed_action
from streaming.admin.pages import Tool, WithPages, require
from streaming.models import InferenceNode
from streaming.models.node import InferenceNode as Node
from streaming.services import node_admin, node_orders
from streaming.services.refused import Refused

PERMISSION = "streaming.operate_node"


@dataclass(frozen=True, slots=True)
class Order:
    """``act`` takes a node's name, and ``by``; what it gives back is said where ``tells``."""

    name: str
    words: str
    question: str
    done: str
    act: Callable[..., Any]
    offered: Callable[[Node], bool] = lambda node: True
    tells: bool = False


ORDERS = {
    order.name: order
    for order in (
        Order(
            "drain",
            "Drain",
            "These nodes get no new work, and their streams move elsewhere. Drain them?",
            "Draining.",
            node_admin.drain_node,
            lambda node: node.state not in (Node.Admin.DRAINING, Node.Admin.DRAINED),
        ),
        Order(
            "resume",
            "Resume",
            "Shall these nodes have work again?",
            "Resumed.",
            node_admin.resume_node,
            lambda node: node.admin_state != Node.Admin.ACTIVE and not node.is_leaving,
        ),
        Order(
            "probe",
            "Probe now",
            "The gateways look at these nodes within about a second, instead of when it is their "
            "turn. Probe them?",
            "Probe asked for.",
            node_orders.probe,
        ),
        Order(
            "reclaim",
            "Reclaim now",
            "Requests that belong to no session any more are aborted on these nodes, and it is "
            "looked whether they are gone. That takes some seconds. Reclaim?",
            "Reclaimed.",
            node_orders.reclaim,
            tells=True,
        ),
        Order(
            "reset_circuit",
            "Reset circuit",
            "The gateways forget the failures of these nodes and send them streams again, at once. "
            "If they still fail, readers wait for it. Reset?",
            "Circuit reset.",
            node_orders.reset_circuit,
            lambda node: node.circuit != node_orders.CLOSED,
        ),
    )
}


class WithNodeOrders(WithPages):
    """``ACTIONS`` for the list; the same above each node's page, each with a page that asks first."""

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSION)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.order_view)
        return [
            path("<int:node_id>/order/<str:name>/", view, name="streaming_inferencenode_order"),
            *super().get_urls(),
        ]

    def tools(self, request: HttpRequest, obj: Node) -> list[Tool]:
        if not self.has_operate_permission(request):
            return []
        return [
            Tool(f"{order.words}…", order_page(obj, order.name))
            for order in ORDERS.values()
            if order.offered(obj)
        ]

    def order_view(self, request: HttpRequest, node_id: int, name: str) -> HttpResponse:
        """Ask, and once somebody has said yes do it."""
        require(request, PERMISSION)
        order = ORDERS.get(name)
        if order is None:
            raise Http404("no such order")
        node = get_object_or_404(self.get_queryset(request), pk=node_id)
        if request.method != "POST":
            return self.page(
                request,
                "admin/streaming/order.html",
                order.words,
                node,
                question=order.question,
                button=f"{order.words}: {node}",
            )
        try:
            found = order.act(node.name, by=actor_of(request))
        except Refused as refusal:
            messages.error(request, str(refusal))
        else:
            self.log_change(request, node, order.done)
            messages.success(request, f"Node {node}: {found if order.tells else order.done}")
        return HttpResponseRedirect(reverse("admin:streaming_inferencenode_change", args=[node.pk]))


def order_page(node: InferenceNode, name: str) -> str:
    """Where an order to a node is given."""
    return reverse("admin:streaming_inferencenode_order", args=[node.pk, name])


def _action(order: Order) -> Action:
    return confirmed_action(
        order.name,
        description=f"{order.words}: selected nodes",
        question=order.question,
        done=order.done,
        act=lambda node, by: order.act(node.name, by=by),
        signed=True,
        permission="operate",
    )


ACTIONS: list[Callable[[Any, HttpRequest, QuerySet[Node]], HttpResponse | None]] = [
    _action(order) for order in ORDERS.values()
]
