"""What models cannot express: no overlapping plans, and tables whose rows stay as they are.

Triggers refuse what must not be, whoever asks. The owner of the tables, which is often the role that
the application uses, also loses the privilege; where it is no superuser, that is a second refusal.
It keeps UPDATE on the key of tables that others refer to: PostgreSQL checks a foreign key by locking
the row that it refers to, as the owner of the table, and to lock a row takes the privilege to update
some column of it.
"""

from django.db import migrations

APPEND_ONLY = ("billing_auditentry", "billing_ledgerentry", "billing_settlement", "billing_periodtotal")
REFERRED_TO = ("billing_ledgerentry", "billing_settlement")

PLANS_DO_NOT_OVERLAP = """
ALTER TABLE billing_priceplan ADD CONSTRAINT plans_do_not_overlap EXCLUDE USING gist (
    int8range(list_id, list_id, '[]') WITH &&,
    tstzrange(effective_from, effective_to) WITH &&
)
"""

REFUSE = """
CREATE FUNCTION billing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: %', tg_op, tg_table_name, tg_argv[0]
        USING ERRCODE = 'insufficient_privilege';
END $$
"""

# Its end may be set, and moved while it has not come; a plan that has not begun may be withdrawn. All
# else is as it was when the plan was made.
ONLY_ITS_END = """
CREATE FUNCTION billing_only_its_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_op = 'DELETE' AND old.effective_from > clock_timestamp() THEN
        RETURN old;
    END IF;
    IF tg_op = 'UPDATE' AND to_jsonb(new) - 'effective_to' = to_jsonb(old) - 'effective_to'
        AND (coalesce(old.effective_to > clock_timestamp(), true)
            OR old.effective_to IS NOT DISTINCT FROM new.effective_to)
    THEN
        RETURN new;
    END IF;
    RAISE EXCEPTION '% of % is refused: only its end may be set, until it has come',
        tg_op, tg_table_name USING ERRCODE = 'insufficient_privilege';
END $$
"""

CLOSED_IS_CLOSED = """
CREATE FUNCTION billing_closed_is_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF old.closed_at IS NOT NULL THEN
        RAISE EXCEPTION '% of % is refused: the period is closed', tg_op, tg_table_name
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF tg_op = 'DELETE' THEN
        RETURN old;
    END IF;
    RETURN new;
END $$
"""

FORWARD_ONLY = """
CREATE FUNCTION billing_forward_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tg_op = 'UPDATE' AND new.seq > old.seq THEN
        RETURN new;
    END IF;
    RAISE EXCEPTION '% of % is refused: the log only grows', tg_op, tg_table_name
        USING ERRCODE = 'insufficient_privilege';
END $$
"""


def guard(
    table: str, name: str, function: str, why: str, *,
    lost: str = "UPDATE, DELETE, TRUNCATE", kept: str = "",
) -> migrations.RunSQL:
    """``lost``: the owner's privileges; ``kept``: what is given back of them."""
    return migrations.RunSQL(
        f"""
        CREATE TRIGGER {name} BEFORE UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {function}('{why}');
        CREATE TRIGGER {name}_truncate BEFORE TRUNCATE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse('{why}');
        REVOKE {lost} ON {table} FROM PUBLIC, CURRENT_USER;
        """
        + (f"GRANT {kept} ON {table} TO CURRENT_USER;" if kept else ""),
        f"""
        DROP TRIGGER {name} ON {table};
        DROP TRIGGER {name}_truncate ON {table};
        GRANT UPDATE, DELETE, TRUNCATE ON {table} TO CURRENT_USER;
        """,
    )


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]

    operations = [
        migrations.RunSQL(
            PLANS_DO_NOT_OVERLAP, "ALTER TABLE billing_priceplan DROP CONSTRAINT plans_do_not_overlap"
        ),
        migrations.RunSQL(REFUSE, "DROP FUNCTION billing_refuse()"),
        migrations.RunSQL(ONLY_ITS_END, "DROP FUNCTION billing_only_its_end()"),
        migrations.RunSQL(CLOSED_IS_CLOSED, "DROP FUNCTION billing_closed_is_closed()"),
        migrations.RunSQL(FORWARD_ONLY, "DROP FUNCTION billing_forward_only()"),
        *(
            guard(
                table, "append_only", "billing_refuse", "it is append-only",
                kept="UPDATE (id)" if table in REFERRED_TO else "",
            )
            for table in APPEND_ONLY
        ),
        guard(
            "billing_audithead", "forward_only", "billing_forward_only", "the log only grows",
            kept="UPDATE (seq, hash)",
        ),
        guard(
            "billing_billingperiod", "closed_is_closed", "billing_closed_is_closed",
            "what is closed stays", lost="TRUNCATE",
        ),
        guard(
            "billing_priceplan", "only_its_end", "billing_only_its_end",
            "a change of price is a new plan", lost="UPDATE, TRUNCATE",
            kept="UPDATE (effective_to)",
        ),
    ]
