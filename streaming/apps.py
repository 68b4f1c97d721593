from django.apps import AppConfig


class StreamingConfig(AppConfig):
    name = "streaming"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Streaming"

    def ready(self) -> None:
        from streaming import checks  # noqa: F401  (registers the system checks)
