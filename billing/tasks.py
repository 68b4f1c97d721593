"""Celery's way to the services of billing; the schedule is in ``gateway_project.celery``."""
