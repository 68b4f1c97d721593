from django.apps import AppConfig


class GatewayProjectConfig(AppConfig):
    name = "gateway_project"
    verbose_name = "Gateway"

    def ready(self) -> None:
        from billing.services import admission
        from gateway_project import checks  # noqa: F401  (registers the system checks)
        from streaming.ports import ports

        ports.admit = admission.admit
