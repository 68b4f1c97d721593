"""The settings: the environment is read here and nowhere else. ``docs/settings.md`` lists it."""

from __future__ import annotations

from pathlib import Path

from environs import Env

from billing.conf import BillingConf
from gateway_project.environment import database_settings, stored_secret_key
from gateway_project.logs import formatters
from gateway_project.supervisor.state import read_state
from streaming.conf import StreamingConf

env = Env()
BASE_DIR = Path(__file__).resolve().parent.parent

# --- where things are -------------------------------------------------------------------------------

DATA_DIR: Path = env.path("DATA_DIR", default=BASE_DIR / ".data").resolve()

# In a second terminal (`manage.py create_api_key`) a running `serve` of this DATA_DIR fills in what
# the environment leaves out. Its own children get everything by their environment.
RUNNING_STACK = read_state(DATA_DIR)
_running = RUNNING_STACK or {}

DATABASE_URL: str = env.str("DATABASE_URL", default=_running.get("database_url", ""))
DATABASE_DIRECT_URL: str = env.str("DATABASE_DIRECT_URL", default=DATABASE_URL)
REDIS_URL: str = env.str("REDIS_URL", default=_running.get("redis_url", ""))
ENGINE_NODES: list[str] = env.list("ENGINE_NODES", default=_running.get("engine_nodes", []))

STREAMING = StreamingConf.from_env(env)
BILLING = BillingConf.from_env(env)

# --- security ---------------------------------------------------------------------------------------

DEBUG: bool = env.bool("DEBUG", default=False)
SECRET_KEY: str = env.str("SECRET_KEY", default="") or stored_secret_key(DATA_DIR)
# Keys of before: what they have signed is still believed. They sign only what goes to receivers that
# may not have the new secrets yet (webhooks, usage events), besides the present one.
SECRET_KEY_FALLBACKS: list[str] = env.list("SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])
TRUSTED_PROXIES: list[str] = env.list("TRUSTED_PROXIES", default=[])
HTTPS_ONLY: bool = env.bool("HTTPS_ONLY", default=False)

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS_ONLY
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS_ONLY and not DEBUG else 0
if TRUSTED_PROXIES:
    # The server drops X-Forwarded-* headers of peers that are not in TRUSTED_PROXIES.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# Whether staff show a second factor after their password: off, optional or required.
STAFF_SECOND_FACTOR: str = env.str("STAFF_SECOND_FACTOR", default="off").lower()
OTP_TOTP_ISSUER = "Unbroken"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- Django -----------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "gateway_project.apps.GatewayProjectConfig",
    "streaming.apps.StreamingConfig",
    "billing.apps.BillingConfig",
    "channels",
    "gateway_project.apps.DeskConfig",  # django.contrib.admin, with a site of our own
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_otp",
    "django_otp.plugins.otp_totp",
    "django_otp.plugins.otp_static",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "gateway_project.static.StaticFiles",
    "gateway_project.queries.WithoutNul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gateway_project.second_factor.gate.SecondFactorGate",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "gateway_project.time_zone.StaffTimeZone",
]

ROOT_URLCONF = "gateway_project.urls"
ASGI_APPLICATION = "gateway_project.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = ["gateway_project.formats"]

# Files are served straight from the apps, so nothing has to be collected first. STATIC_ROOT is for
# deployments that let nginx serve them (`manage.py collectstatic`).
STATIC_URL = "/static/"
STATIC_ROOT: str | None = env.str("STATIC_ROOT", default=None)
WHITENOISE_USE_FINDERS = True

# --- traces -----------------------------------------------------------------------------------------

# Off unless an endpoint is named; OpenTelemetry's SDK reads its other variables itself.
TRACES_ENDPOINT: str = env.str("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", default="") or env.str(
    "OTEL_EXPORTER_OTLP_ENDPOINT", default=""
)
TRACES_SERVICE = "unbroken-gateway"

# --- PostgreSQL, Redis, Celery ----------------------------------------------------------------------

DATABASES = {
    "default": database_settings(DATABASE_URL, pool_size=env.int("DATABASE_POOL_SIZE", default=8))
}

if REDIS_URL:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            "CONFIG": {
                # socket_timeout: redis-py 8 defaults to 5 s, as long as the layer's own blocking
                # read, so every idle consumer would die after 5 s (channels_redis#422).
                "hosts": [{"address": REDIS_URL, "socket_timeout": None}],
                "prefix": "unbroken",
                "capacity": 1000,
                "expiry": 30,
            },
        }
    }
else:
    # Enough for a single process: the layer carries hints, never tokens. Check gateway.W001 says so.
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_DEFAULT_QUEUE = "unbroken"  # gateways look at its length when no task has run for long
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"

# --- logs -------------------------------------------------------------------------------------------

LOG_LEVEL: str = env.str("LOG_LEVEL", default="INFO").upper()
LOG_FORMAT: str = env.str("LOG_FORMAT", default="text").lower()
LOGGING_CONFIG = "gateway_project.logs.configure"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": formatters(LOG_FORMAT),
    "filters": {"refusal": {"()": "gateway_project.logs.Refusal"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": LOG_LEVEL, "propagate": True},
        "django.request": {"filters": ["refusal"]},
        # Every probe and every proxied request would be a line.
        "httpx": {"level": "WARNING"},
        "daphne.http_protocol": {"level": "WARNING"},
        # Published heads of the audit log are of use only outside of the database.
        "billing.audit": {"level": "INFO"},
    },
}
