"""Wiring: settings, addresses, the Celery application, system checks and `manage.py up`."""

from webapp.celery import app as celery_application

__all__ = ["celery_application"]
