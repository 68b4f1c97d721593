"""Finance's books in a stack's own database; run by ``manage.py shell``.

A tenant with a month that is over, and a member of staff who may do finance's work.
"""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.models import Permission, User
from django.utils import timezone

from billing.services.settlement import settle_due
from tests.billing.admin.books import FINANCE
from tests.billing.rows import add_plan, add_tenant, ended_session

USER, PASSWORD = "fin", "for finance only"
SESSIONS = 3


def fill() -> None:
    """Everything that the journey of ``test_finance`` needs."""
    user = User.objects.create_user(USER, password=PASSWORD, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=[*FINANCE, "all_tenants"]))
    first = timezone.now().replace(day=1, hour=0, minute=0)
    tenant = add_tenant("acme", display_name="Acme & Sons", created_at=first - timedelta(days=20))
    add_plan(input="100", cached="10", output="5000", cost="1200")
    for number in range(SESSIONS):
        at = first - timedelta(days=2, hours=number)
        ended_session(7 + number, tenant=tenant, at=at)
    settle_due()
