from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AnnotationConfig(AppConfig):
    name = "annotation"

    def ready(self) -> None:
        from annotation.selectors import configuration
        from annotation.selectors.tables.search import ensure_word_indexes

        configuration.listen()
        post_migrate.connect(ensure_word_indexes, sender=self, dispatch_uid="word indexes")
