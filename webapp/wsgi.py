"""The WSGI application for gunicorn."""

import os
from importlib import import_module

from django.core.wsgi import get_wsgi_application

from webapp.environment import load_settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

load_settings_or_exit()
application = get_wsgi_application()
# Views are imported before gunicorn forks its processes, once for all of them.
import_module("webapp.urls")
