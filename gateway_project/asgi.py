"""The ASGI application: streaming consumers first, Django for everything else."""

import os

from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway_project.settings")
django_application = (
    get_asgi_application()
)  # sets Django up: must come before the consumers' import

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from streaming.routing import http_urlpatterns, websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": URLRouter([*http_urlpatterns, re_path(r"", django_application)]),
        "websocket": URLRouter(websocket_urlpatterns),
    }
)
