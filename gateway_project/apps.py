from django.apps import AppConfig


class GatewayProjectConfig(AppConfig):
    name = "gateway_project"
    verbose_name = "Gateway"

    def ready(self) -> None:
        from gateway_project import checks  # noqa: F401  (registers the system checks)
