from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Billing"

    def ready(self) -> None:
        from billing import checks  # noqa: F401  (registers the system checks)
        from billing.metrics import FIGURES
        from streaming.metrics import stored

        stored.register(FIGURES)
