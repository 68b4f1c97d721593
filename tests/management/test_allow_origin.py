"""``manage.py allow_origin``."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from streaming.models import OutboxMessage, Tenant

pytestmark = pytest.mark.django_db


def allow(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("allow_origin", "--tenant", "acme", *arguments, stdout=out)
    return out.getvalue().splitlines()


def test_origins_are_allowed_listed_and_removed() -> None:
    tenant = Tenant.objects.create(name="acme")
    assert allow() == ["No page of another origin may embed its chat."]
    both = ["https://shop.example", "http://localhost:3000"]
    assert allow("https://Shop.example:443/") == both[:1]
    assert allow(*both) == both
    assert allow(*both) == allow() == both
    assert allow("--remove", "https://shop.example") == both[1:]
    tenant.refresh_from_db()
    assert tenant.allowed_origins == both[1:]

    said = list(OutboxMessage.objects.order_by("id").values_list("data", flat=True))
    assert [(one["action"], one["subject"]) for one in said] == [
        ("tenant.change", "tenant:acme")
    ] * 3, "nothing is told of what changed nothing"
    assert said[-1]["actor"].startswith("command:")
    assert said[-1]["data"]["allowed_origins"].endswith('["http://localhost:3000"]')


@pytest.mark.parametrize(
    "arguments",
    [["https://shop.example/chat"], ["https://*.example"], ["--remove", "https://a.example"],
     ["--remove"]],
)  # fmt: skip
def test_what_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        allow("https://shop.example")  # there is no such tenant
    Tenant.objects.create(name="acme")
    with pytest.raises(CommandError):
        allow(*arguments)
    assert not OutboxMessage.objects.exists()
