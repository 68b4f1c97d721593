"""Somebody's authenticator and backup codes. Everything here is audited, and guesses are slowed down.

Of one person there is at most one authenticator (``TOTPDevice``) and one set of codes
(``StaticDevice``). django-otp makes whoever guesses wrong wait 1, 2, 4, … seconds, per device.
"""

from __future__ import annotations

import re
from typing import Any

import django_otp
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest
from django_otp.models import Device
from django_otp.plugins.otp_static.models import StaticDevice, StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from streaming.services import audit
from streaming.services.refused import Refused

OFF, OPTIONAL, REQUIRED = "off", "optional", "required"
CODES = 10

_TOKEN = re.compile(r"[0-9]{6}")


def mode() -> str:
    """``off``, ``optional`` or ``required``, as set; what is none of them protects the most."""
    return (
        settings.STAFF_SECOND_FACTOR
        if settings.STAFF_SECOND_FACTOR in (OFF, OPTIONAL)
        else REQUIRED
    )


def is_enrolled(user: Any) -> bool:
    """Whether somebody has to show a second factor after their password."""
    return TOTPDevice.objects.filter(user_id=user.pk, confirmed=True).exists()


def has_shown(request: HttpRequest) -> bool:
    """Whether who is logged in has shown theirs in this session of the browser, and has it still."""
    shown = request.session.get(django_otp.DEVICE_ID_SESSION_KEY)
    device = Device.from_persistent_id(shown) if shown else None
    return device is not None and device.confirmed and device.user_id == request.user.pk


def codes_left(user: Any) -> int:
    """How many backup codes somebody has not used."""
    return StaticToken.objects.filter(device__user_id=user.pk).count()


def verify(user: User, token: str) -> TOTPDevice | StaticDevice:
    """The device that ``token`` is of: six digits of the app, or a backup code, which is used up.

    Raises ``Refused`` for a wrong one, and for any while somebody has to wait after wrong ones.
    """
    token = re.sub(r"[\s-]", "", token).lower()
    with transaction.atomic():
        kind = TOTPDevice if _TOKEN.fullmatch(token) else StaticDevice
        device = kind.objects.select_for_update().filter(user_id=user.pk, confirmed=True).first()
        if device is None:
            raise Refused("This is no code of yours.")
        wait = _has_to_wait(device)
        right = not wait and device.verify_token(token)
        if right and isinstance(device, StaticDevice):
            _tell("backup_code_used", user, left=codes_left(user))
        elif not right and not wait:
            _tell("refused", user, failures=device.throttling_failure_count)
    # Outside: a wrong guess has to stay counted.
    if not right:
        raise Refused(
            "Too many wrong codes: wait a while."
            if wait
            else "This is no code of yours, or an old one."
        )
    return device


@transaction.atomic
def begin(user: User) -> TOTPDevice:
    """An authenticator with a new secret; it counts once a token of it has been shown (``confirm``)."""
    TOTPDevice.objects.filter(user=user, confirmed=False).delete()
    return TOTPDevice.objects.create(user=user, name="authenticator", confirmed=False)


def leave(user: User) -> None:
    """Forget the one that was begun."""
    TOTPDevice.objects.filter(user=user, confirmed=False).delete()


def begun(user: User) -> TOTPDevice | None:
    """The one that waits for its first token."""
    return TOTPDevice.objects.filter(user=user, confirmed=False).first()


def confirm(user: User, token: str) -> tuple[TOTPDevice, list[str]]:
    """The authenticator that was begun, from now on asked for in place of a former one, and new codes.

    Raises ``Refused``, as ``verify`` does.
    """
    with transaction.atomic():
        device = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=False).first()
        wait = device is not None and _has_to_wait(device)
        if device is not None and not wait and device.verify_token(token.replace(" ", "")):
            TOTPDevice.objects.filter(user=user, confirmed=True).delete()
            device.confirmed = True
            device.save(update_fields=["confirmed"])
            _tell("enrolled", user)
            return device, new_codes(user)
    raise Refused(
        "Too many wrong codes: wait a while."
        if wait
        else "This is not what the app shows now: is the clock of your phone right?"
    )


@transaction.atomic
def new_codes(user: User) -> list[str]:
    """New backup codes; the former ones are void. They are shown once: here is where."""
    StaticDevice.objects.filter(user=user).delete()
    device = StaticDevice.objects.create(user=user, name="backup codes")
    codes = [StaticToken.random_token() for _ in range(CODES)]
    StaticToken.objects.bulk_create(StaticToken(device=device, token=code) for code in codes)
    _tell("backup_codes_made", user)
    return codes


@transaction.atomic
def remove(user: User, *, by: str | None = None) -> bool:
    """Have somebody's second factor gone, whoever did it (themselves: None); whether there was one."""
    there = is_enrolled(user)
    TOTPDevice.objects.filter(user=user).delete()
    StaticDevice.objects.filter(user=user).delete()
    if there:
        _tell("removed", user, by=by)
    return there


def _has_to_wait(device: TOTPDevice | StaticDevice) -> bool:
    return not device.verify_is_allowed()[0]


def _tell(did: str, user: User, *, by: str | None = None, **data: Any) -> None:
    name = f"user:{user.get_username()}"
    audit.announce(f"second_factor.{did}", actor=by or name, subject=name, **data)
