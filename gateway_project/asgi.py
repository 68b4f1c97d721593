"""The ASGI application: streaming consumers first, Django for everything else."""

import os

from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway_project.settings")
# Sets Django up: must come before the consumers' import.
django_application = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from streaming.routing import http_urlpatterns, websocket_urlpatterns  # noqa: E402

# Channels routes to ASGI applications where Django's stubs expect views.
everything_else = re_path(r"", django_application)  # type: ignore[arg-type]

application = ProtocolTypeRouter(
    {
        "http": URLRouter([*http_urlpatterns, everything_else]),
        "websocket": URLRouter(websocket_urlpatterns),
    }
)
