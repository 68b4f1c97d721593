"""What operators have done to a node at once, rather than when its turn comes.

Gateways read the node table once a second and obey: a probe that is asked for, a circuit that is
reset. An order to a name counts for all of its addresses.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models.functions import Now

from streaming.models import InferenceNode
from streaming.services import node_admin
from streaming.services import reclaim as sweeps
from streaming.services.leases import release_lease, take_lease
from streaming.services.node_events import note
from streaming.services.refused import Refused

CLOSED = "closed"
PATIENCE_SECONDS = 5.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What looking at a node has shown, in attempts whose engine requests were not known to be gone.

    ``surplus``: requests there that nobody has. ``waiting``: attempts that nothing is known of.
    """

    waiting: int
    verified: int
    unverifiable: int
    overdue: int
    surplus: int

    def __str__(self) -> str:
        if not any((self.waiting, self.verified, self.unverifiable, self.overdue, self.surplus)):
            return "there was nothing to reclaim"
        return (
            f"{self.verified} requests seen to be gone, {self.unverifiable} could not be verified,"
            f" {self.overdue} overdue, {self.surplus} that nobody has"
        )


def probe(name: str, *, by: str) -> InferenceNode:
    """Have the gateways look at the node now, whatever they know of it. Raises ``Refused``."""
    with transaction.atomic():
        node = node_admin.find_node(name)
        for target in _targets(node):
            _stamp(target, "probe_asked_at")
            note(target, "probe_asked", by=by)
        node_admin.announce("node.probe", node, by=by)
    return node


def reset_circuit(name: str, *, by: str) -> InferenceNode:
    """Have the gateways forget its failures and send it streams again. Raises ``Refused``."""
    with transaction.atomic():
        node = node_admin.find_node(name)
        targets = [target for target in _targets(node, locked=True) if target.circuit != CLOSED]
        if not targets:
            raise Refused(f"The circuit of {name} is closed: there is nothing to reset.")
        for target in targets:
            _stamp(target, "circuit_reset_at")
            note(target, "circuit_reset", by=by, was=target.circuit)
        node_admin.announce("node.reset_circuit", node, by=by, was=targets[0].circuit)
    return node


def reclaim(name: str, *, by: str) -> Reclaimed:
    """Abort what should be gone from the node, and look whether it is. Takes up to some seconds.

    Raises ``Refused`` for an unknown node, and while another sweep does not come to its end.
    """
    node = node_admin.find_node(name)
    holder = f"{socket.gethostname()} {os.getpid()} {threading.get_ident()} by hand"
    _wait_for_lease(holder)
    try:
        # Told first: it goes out to engines, and nothing done there can be rolled back.
        node_admin.announce("node.reclaim", node, by=by)
        looks = [sweeps.sweep(target) for target in _targets(node)]
        found = Reclaimed(
            waiting=sum(look.waiting for look in looks),
            verified=sum(look.verified for look in looks),
            unverifiable=sum(look.unverifiable for look in looks),
            overdue=sum(look.overdue for look in looks),
            surplus=sum(seen["requests"] for look in looks for seen in look.surplus.values()),
        )
        note(node, "reclaimed", by=by, verified=found.verified, unverifiable=found.unverifiable,
             overdue=found.overdue, surplus=found.surplus)  # fmt: skip
    finally:
        release_lease(sweeps.TASK, holder)
    return found


def _targets(node: InferenceNode, *, locked: bool = False) -> Sequence[InferenceNode]:
    """The node, or what is behind it."""
    nodes = InferenceNode.objects.select_for_update(no_key=True) if locked else (
        InferenceNode.objects.all()
    )  # fmt: skip
    addresses = list(nodes.filter(parent=node).order_by("pk"))
    return addresses or list(nodes.filter(pk=node.pk))


def _stamp(node: InferenceNode, column: str) -> None:
    # By the database's clock, as gateways read it; and nothing that they write is written back.
    InferenceNode.objects.filter(pk=node.pk).update(**{column: Now()})


def _wait_for_lease(holder: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not take_lease(sweeps.TASK, holder, sweeps.LEASE_SECONDS):
        if time.monotonic() > until:
            raise Refused("Another sweep runs at the moment: try again in some seconds.")
        time.sleep(LOOK_SECONDS)
