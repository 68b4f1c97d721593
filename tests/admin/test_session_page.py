"""The page of one session: what it says, what it costs, and that nothing on it does harm."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.admin.cases import recovered

pytestmark = pytest.mark.django_db


def url_of(session) -> str:
    return reverse("admin:streaming_streamsession_change", args=[session.pk])


def test_it_opens(admin_client):
    session = recovered()
    response = admin_client.get(url_of(session))
    assert response.status_code == 200
    open("/tmp/w/page/.git/page.html", "w").write(response.content.decode())
