"""Every model of `training` in the Django admin."""

from training.admin import comparing, conversations, evaluations, feedback, judges, registry, rounds

__all__ = ["comparing", "conversations", "evaluations", "feedback", "judges", "registry", "rounds"]
