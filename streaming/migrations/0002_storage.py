"""Storage parameters that models cannot express."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("streaming", "0001_initial")]

    operations = [
        # The fence is updated with every flush; room on the page keeps those updates HOT.
        migrations.RunSQL(
            "ALTER TABLE session_fence SET (fillfactor = 50)",
            "ALTER TABLE session_fence RESET (fillfactor)",
        ),
    ]
