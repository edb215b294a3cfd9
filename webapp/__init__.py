"""Wiring: settings, addresses, the Celery application, system checks and `manage.py up`."""

from webapp.celery import app as celery_application

__version__ = "1.0.0"
__all__ = ["__version__", "celery_application"]
