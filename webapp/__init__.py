"""Wiring: settings, addresses, the Celery application, system checks and `manage.py up`."""

__version__ = "2.0.0"

# Celery's command reads the settings while it is imported, and they name the version.
from webapp.celery import app as celery_application
