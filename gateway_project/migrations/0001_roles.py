"""The groups of ``gateway_project.roles``, as they are given to a new installation.

Written out, for a migration says the same for ever: what a role gets later, a later one adds. A group
that is there already is left as somebody has made it.
"""

from django.apps.registry import Apps
from django.contrib.auth.management import create_permissions
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

ROLES = {
    "support": """
        streaming: all_tenants continue_session export_sessions review_session stop_session
            view_attempt view_contentrule view_embedtoken view_incident view_inferencenode
            view_nodeevent view_sessionevent view_streamsession view_tenant view_tokencheckpoint
            view_webhookdelivery view_webhookendpoint watch_live_board
    """,
    "content_reviewer": """
        streaming: all_tenants purge_content reveal_content review_session view_attempt
            view_contentrule view_sessionevent view_streamsession view_tenant
    """,
    "finance": """
        streaming: all_tenants credit_incident view_attempt view_incident view_sessionevent
            view_streamsession view_tenant
        billing: add_billingaccount add_priceplan add_usagesink approve_credit book_credit
            change_billingaccount change_billingperiod change_usagesink export_ledger
            view_auditentry view_billingaccount view_billingperiod view_budgetalert
            view_creditrequest view_eventdelivery view_export view_ledgerentry view_periodtotal
            view_pricelist view_priceplan view_quotause view_settlement view_usagerecord
            view_usagesink
    """,
    "operator": """
        streaming: add_inferencenode add_modelalias add_modelpolicy all_tenants change_incident
            change_inferencenode change_modelalias change_modelpolicy delete_inferencenode
            delete_modelalias delete_modelpolicy operate_node view_attempt view_gatewayinstance
            view_incident view_inferencenode view_modelalias view_modelpolicy view_nodeevent
            view_outboxmessage view_sessionevent view_streamsession view_taskrun view_tenant
            view_tokencheckpoint view_webhookdelivery view_webhookendpoint change_webhookendpoint
            view_contentrule watch_live_board
    """,
    "tenant_admin": """
        streaming: add_apikey add_contentrule add_webhookendpoint change_apikey change_contentrule
            change_embedtoken change_webhookendpoint delete_contentrule view_apikey view_attempt
            view_contentrule view_embedtoken view_modelalias view_sessionevent view_streamsession
            view_tenant view_webhookdelivery view_webhookendpoint
        billing: view_budgetalert view_quotause view_usagerecord
    """,
}
"""Of each role the names of permissions, after the app that they are of."""


def make_groups(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    using = editor.connection.alias
    # Django makes permissions when all migrations are done, and then takes those that there are.
    for config in (apps.get_app_config("streaming"), apps.get_app_config("billing")):
        config.models_module = True  # apps of migrations have none, and would be passed over
        create_permissions(config, verbosity=0, using=using, apps=apps)
    group_of = apps.get_model("auth", "Group").objects.using(using)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    ids = {
        (app, name): pk
        for pk, app, name in permissions.values_list("pk", "content_type__app_label", "codename")
    }
    for role, names in ROLES.items():
        group, made = group_of.get_or_create(name=role)
        if made:
            group.permissions.set(ids[name] for name in named(names))


def named(names: str) -> list[tuple[str, str]]:
    """App and codename of the permissions that are listed so: ``streaming: view_tenant …``."""
    found, app = [], ""
    for word in names.split():
        if word.endswith(":"):
            app = word[:-1]
        else:
            found.append((app, word))
    return found


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("streaming", "0001_initial"),
        ("billing", "0001_initial"),
    ]
    operations = [
        # Backwards nothing: groups hold people by then.
        migrations.RunPython(make_groups, migrations.RunPython.noop),
    ]
