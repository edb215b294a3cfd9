"""Every model of `training` in the Django admin."""

from training.admin import comparing, evaluations, judges, registry, rounds

__all__ = ["comparing", "evaluations", "judges", "registry", "rounds"]
