"""What models cannot express: no overlapping plans, and tables that only grow."""

from django.db import migrations

APPEND_ONLY = ("billing_ledgerentry", "billing_auditentry", "billing_settlement")

PLANS_DO_NOT_OVERLAP = """
ALTER TABLE billing_priceplan ADD CONSTRAINT plans_do_not_overlap EXCLUDE USING gist (
    int8range(list_id, list_id, '[]') WITH &&,
    tstzrange(effective_from, effective_to) WITH &&
)
"""

REFUSE = """
CREATE FUNCTION billing_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: it is append-only', tg_op, tg_table_name
        USING ERRCODE = 'insufficient_privilege';
END $$
"""


def guard(table: str) -> str:
    return f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION billing_append_only();
    CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON {table}
        FOR EACH STATEMENT EXECUTE FUNCTION billing_append_only();
    REVOKE UPDATE, DELETE, TRUNCATE ON {table} FROM PUBLIC, CURRENT_USER;
    """


def unguard(table: str) -> str:
    return f"""
    DROP TRIGGER append_only ON {table};
    DROP TRIGGER append_only_truncate ON {table};
    GRANT UPDATE, DELETE, TRUNCATE ON {table} TO CURRENT_USER;
    """


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.RunSQL(
            PLANS_DO_NOT_OVERLAP, "ALTER TABLE billing_priceplan DROP CONSTRAINT plans_do_not_overlap"
        ),
        migrations.RunSQL(REFUSE, "DROP FUNCTION billing_append_only()"),
        *(migrations.RunSQL(guard(table), unguard(table)) for table in APPEND_ONLY),
    ]
