from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class WebappConfig(AppConfig):
    name = "webapp"

    def ready(self) -> None:
        # Importing registers the checks, which need the apps to be ready.
        from webapp import checks  # noqa: F401
        from webapp.operations import jobs  # noqa: F401 - connects to Celery's signals


class RondoAdminConfig(AdminConfig):
    """Django's admin with `webapp.navigation.admin_site` as its site."""

    default_site = "webapp.navigation.admin_site.RondoAdminSite"
