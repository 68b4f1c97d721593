"""Believable data for a stack that nobody uses yet: ``manage.py seed_demo``."""
