"""The project's settings, on the PostgreSQL and Redis of this test session."""

from tests import services

services.start()

from gateway_project.settings import *  # noqa: E402, F403
from gateway_project.settings import DATABASES  # noqa: E402

# Test databases come and go: a pool would hold connections to them.
DATABASES["default"].get("OPTIONS", {}).pop("pool", None)
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
