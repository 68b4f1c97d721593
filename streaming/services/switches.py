"""Switches that operators turn while everything runs, for a node or for a model on all nodes.

Off in one place is off: a model's switch and its node's are both asked.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from streaming.models import InferenceNode, ModelPolicy
from streaming.models.node import Switch
from streaming.services import audit
from streaming.services.node_admin import announce, find_node
from streaming.services.node_events import note, note_model
from streaming.services.refused import Refused

NAMES = ("failover", "hedging", "defragment")


def switch_node(node_name: str, switch: str, to: str, *, by: str = audit.SYSTEM) -> InferenceNode:
    """Turn a switch of a node, and of its addresses if it stands for several. Raises ``Refused``."""
    to = _checked(switch, to)
    node = find_node(node_name)
    _refuse_without_failover(switch, to, node.failover, node.name)
    with transaction.atomic():
        for target in [node, *node.addresses.all()]:
            was = getattr(target, switch)
            if was != to:
                setattr(target, switch, to)
                target.save(update_fields=[switch])
                note(target, "switched", by=by, switch=switch, was=was, now=to)
                announce("node.switch", target, by=by, switch=switch, was=was, now=to)
    return node


def switch_model(model: str, switch: str, to: str, *, by: str = audit.SYSTEM) -> ModelPolicy:
    """Turn a switch of a model on all nodes. Raises ``Refused``."""
    to = _checked(switch, to)
    with transaction.atomic():
        policy = ModelPolicy.objects.filter(model=model).first() or ModelPolicy(model=model)
        _refuse_without_failover(switch, to, policy.failover, model)
        try:
            policy.clean_fields()
        except ValidationError as exc:
            raise Refused(" ".join(exc.messages)) from exc
        was = getattr(policy, switch)
        setattr(policy, switch, to)
        policy.save()
        if was != to:
            note_switched(model, switch, was=was, now=to, by=by)
    return policy


def note_switched(model: str, switch: str, *, was: str | None, now: str, by: str) -> None:
    """Note that a switch of a model was turned; in the same transaction."""
    note_model(model, "switched", by=by, switch=switch, was=was, now=now)
    audit.announce(
        "model.switch", actor=by, subject=f"model:{model}", switch=switch, was=was, now=now
    )


def remove_policy(policy: ModelPolicy, *, by: str) -> None:
    """All switches of a model are as they are by default again."""
    with transaction.atomic():
        policy.delete()
        note_model(policy.model, "policy_removed", by=by)
        audit.announce("model.policy_removed", actor=by, subject=f"model:{policy.model}")


def served_models() -> set[str]:
    """The models that nodes were seen serving."""
    return {
        model
        for models in InferenceNode.objects.values_list("models_served", flat=True)
        for model in models
    }


def _checked(switch: str, to: str) -> str:
    """The stored word. Raises ``Refused`` naming what there is."""
    if switch not in NAMES:
        raise Refused(f"There is no switch {switch!r}; there are {', '.join(NAMES)}.")
    to = to.replace("-", "_")
    if to not in Switch.values:
        raise Refused(f"{switch} cannot be {to!r}: say on, off or (defragment only) dry_run.")
    if to == Switch.DRY_RUN and switch != "defragment":
        raise Refused(f"{switch} is on or off: only defragment has a dry run.")
    return to


def _refuse_without_failover(switch: str, to: str, failover: str, name: str) -> None:
    if switch == "hedging" and to == Switch.ON and failover == Switch.OFF:
        raise Refused(
            f"Failover of {name} is off, and a hedge is a continuation elsewhere: turn failover on"
            " first."
        )
