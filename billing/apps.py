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
        self._connect_desk()

    def _connect_desk(self) -> None:
        """Show money at the support desk, where there is an admin."""
        from django.apps import apps

        if apps.is_installed("django.contrib.admin"):
            from billing.admin.desk import Desk
            from streaming.admin import finance

            finance.connect(Desk())
