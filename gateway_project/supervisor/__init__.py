"""``manage.py serve``: one process that owns every other one of a stack."""
