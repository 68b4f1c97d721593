"""Periods: one after the other, where they are, and closed to new lines once they are closed."""

from django.db import migrations

PERIODS_DO_NOT_OVERLAP = """
ALTER TABLE billing_billingperiod ADD CONSTRAINT periods_do_not_overlap EXCLUDE USING gist (
    int8range(tenant_id, tenant_id, '[]') WITH &&,
    tstzrange(starts_at, ends_at) WITH &&
)
"""

# A line that finds its period being closed waits for that, and is refused then. Whoever adds lines
# holds the period already (billing.locks), so this costs them a look at a row they have just read.
CLOSED_TO_LINES = """
CREATE FUNCTION billing_open_period_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    closed timestamptz;
BEGIN
    SELECT closed_at INTO closed FROM billing_billingperiod
        WHERE id = NEW.period_id FOR KEY SHARE;
    IF closed IS NOT NULL THEN
        RAISE EXCEPTION 'period % is closed: % takes nothing more for it', NEW.period_id, tg_table_name
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$
"""

WHERE_IT_IS = """
CREATE FUNCTION billing_period_stays_where_it_is() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'period % stays where it is', old.id USING ERRCODE = 'insufficient_privilege';
END $$
"""

TRIGGERS = {
    "closed_to_lines": ("INSERT ON billing_ledgerentry", "billing_open_period_only"),
    "closed_to_settlements": ("INSERT ON billing_settlement", "billing_open_period_only"),
    "stays_where_it_is": (
        "UPDATE OF tenant_id, name, starts_at, ends_at, time_zone ON billing_billingperiod",
        "billing_period_stays_where_it_is",
    ),
}


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_guards")]

    operations = [
        migrations.RunSQL(
            PERIODS_DO_NOT_OVERLAP,
            "ALTER TABLE billing_billingperiod DROP CONSTRAINT periods_do_not_overlap",
        ),
        migrations.RunSQL(CLOSED_TO_LINES, "DROP FUNCTION billing_open_period_only()"),
        migrations.RunSQL(WHERE_IT_IS, "DROP FUNCTION billing_period_stays_where_it_is()"),
        *(
            migrations.RunSQL(
                f"CREATE TRIGGER {name} BEFORE {what} FOR EACH ROW EXECUTE FUNCTION {function}()",
                f"DROP TRIGGER {name} ON {what.rpartition(' ')[2]}",
            )
            for name, (what, function) in TRIGGERS.items()
        ),
    ]
