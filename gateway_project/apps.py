from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class DeskConfig(AdminConfig):
    """Django's admin, on ``gateway_project.site``."""

    default = False
    default_site = "gateway_project.site.DeskSite"

    def ready(self) -> None:
        super().ready()
        from gateway_project import logins  # noqa: F401  (receives what Django tells of logins)


class GatewayProjectConfig(AppConfig):
    name = "gateway_project"
    verbose_name = "Gateway"

    def ready(self) -> None:
        from billing.services.admission import admit
        from billing.services.retention import may_reduce, usage_of
        from billing.services.settlement import settle_overdue
        from gateway_project import checks  # noqa: F401  (registers the system checks)
        from gateway_project.second_factor.gate import has_passed
        from streaming.ports import ports

        # Streaming knows nothing of billing: it asks whoever is connected here.
        ports.admit = admit
        ports.settle = settle_overdue
        ports.is_verified = has_passed
        ports.may_reduce = may_reduce
        ports.usage_of = usage_of
