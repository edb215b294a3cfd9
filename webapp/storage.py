"""Names of collected static files: hashed by content, so that browsers may cache them forever."""

from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]


class HashedStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Hashed names also for imports between scripts.

    Otherwise a new script would import cached modules of an older version.
    """

    support_js_module_import_aggregation = True
    # Only our scripts: comments of packages may look like imports.
    _js_module_import_aggregation_patterns = (
        "js/*.js",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )
