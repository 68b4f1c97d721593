from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class StreamingConfig(AppConfig):
    name = "streaming"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Streaming"

    def ready(self) -> None:
        from streaming import checks  # noqa: F401  (registers the system checks)

        post_migrate.connect(_make_partitions, sender=self)


def _make_partitions(**kwargs: Any) -> None:
    """The first sessions begin before the first task has run."""
    from streaming.services.partitions import make_partitions

    make_partitions()
