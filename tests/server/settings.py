"""The least Django that the server needs: no database, no Redis."""

import os

from streaming.conf import StreamingConf

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["channels"]
TRUSTED_PROXIES = os.environ.get("TRUSTED_PROXIES", "127.0.0.2").split(",")
TRACES_ENDPOINT = ""
STREAMING = StreamingConf(
    max_body_bytes=100_000, shutdown_grace=float(os.environ.get("SHUTDOWN_GRACE", "2"))
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "gateway_project.logs.LineFormatter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
