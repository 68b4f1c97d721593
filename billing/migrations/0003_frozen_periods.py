"""What is closed stays as it is, and what a price was stays what it was: the database sees to it."""

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

FROZEN_PERIOD = """
CREATE FUNCTION billing_frozen_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.closed_at IS NOT NULL THEN
        RAISE EXCEPTION '% of period % is refused: it is closed', tg_op, OLD.id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF tg_op = 'DELETE' THEN
        RETURN OLD;
    END IF;
    IF (NEW.tenant_id, NEW.name, NEW.starts_at, NEW.ends_at, NEW.time_zone)
        IS DISTINCT FROM (OLD.tenant_id, OLD.name, OLD.starts_at, OLD.ends_at, OLD.time_zone) THEN
        RAISE EXCEPTION 'period % stays where it is', OLD.id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$
"""

FROZEN_PLAN = """
CREATE FUNCTION billing_frozen_plan() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was billing_priceplan := OLD;
BEGIN
    IF tg_op = 'DELETE' THEN
        IF OLD.effective_from <= clock_timestamp() THEN
            RAISE EXCEPTION 'price plan % is in force or was: end it instead', OLD.id
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN OLD;
    END IF;
    was.effective_to := NEW.effective_to;
    IF NEW IS DISTINCT FROM was THEN
        RAISE EXCEPTION 'of price plan % only the end can be set', OLD.id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$
"""

TRIGGERS = {
    "closed_to_lines": ("billing_ledgerentry", "INSERT", "billing_open_period_only"),
    "closed_to_settlements": ("billing_settlement", "INSERT", "billing_open_period_only"),
    "frozen_period": ("billing_billingperiod", "UPDATE OR DELETE", "billing_frozen_period"),
    "frozen_total": ("billing_periodtotal", "UPDATE OR DELETE", "billing_append_only"),
    "frozen_plan": ("billing_priceplan", "UPDATE OR DELETE", "billing_frozen_plan"),
}


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_guards")]

    operations = [
        migrations.RunSQL(
            PERIODS_DO_NOT_OVERLAP,
            "ALTER TABLE billing_billingperiod DROP CONSTRAINT periods_do_not_overlap",
        ),
        migrations.RunSQL(CLOSED_TO_LINES, "DROP FUNCTION billing_open_period_only()"),
        migrations.RunSQL(FROZEN_PERIOD, "DROP FUNCTION billing_frozen_period()"),
        migrations.RunSQL(FROZEN_PLAN, "DROP FUNCTION billing_frozen_plan()"),
        *(
            migrations.RunSQL(
                f"CREATE TRIGGER {name} BEFORE {what} ON {table}"
                f" FOR EACH ROW EXECUTE FUNCTION {function}()",
                f"DROP TRIGGER {name} ON {table}",
            )
            for name, (table, what, function) in TRIGGERS.items()
        ),
    ]
