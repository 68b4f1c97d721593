"""What a visitor of the demo gets: a key, an alias, a token for the page."""

from __future__ import annotations

import stat
from io import StringIO

import pytest
from django.core.management import call_command

from streaming.models import ApiKey, ModelAlias
from streaming.services.api_keys import find_api_key, revoke_api_key
from streaming.services.demo_tokens import mint_demo_token, read_demo_token


@pytest.fixture
def seed(settings, tmp_path, db):
    settings.DATA_DIR = tmp_path / "data"

    def run() -> str:
        out = StringIO()
        call_command("seed_demo_access", stdout=out)
        (line,) = out.getvalue().splitlines()
        return next(word for word in line.split() if word.startswith("ub-test-"))

    return run


def test_the_demo_key_is_made_once_and_kept_for_its_owner_only(seed, settings):
    secret = seed()
    path = settings.DATA_DIR / "demo_api_key"
    assert path.read_text().strip() == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert find_api_key(secret).tenant.name == "demo"
    assert find_api_key(secret).is_test
    assert seed() == secret
    assert ApiKey.objects.count() == 1
    assert ModelAlias.objects.get().model == "smollm2-135m-instruct"


def test_a_key_that_opens_nothing_is_replaced(seed):
    secret = seed()
    revoke_api_key(secret)
    other = seed()
    assert other != secret
    ApiKey.objects.all().delete()  # another database behind the same DATA_DIR
    assert seed() not in (secret, other)


def test_an_alias_that_the_operator_has_changed_stays(seed):
    seed()
    ModelAlias.objects.update(model="mine")
    seed()
    assert ModelAlias.objects.get().model == "mine"


def test_a_demo_token_names_its_visitor_and_cannot_be_forged():
    token = mint_demo_token("visitor-1")
    assert token.startswith("ubd_")
    assert read_demo_token(token) == "visitor-1"
    assert read_demo_token(token[:-1] + ("A" if token[-1] != "A" else "B")) is None
    assert read_demo_token("ubd_") is None
    assert read_demo_token(token, max_age=-1) is None
