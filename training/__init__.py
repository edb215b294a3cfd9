"""Judgments become models.

The Django side (models, services, views, tasks) and the torch side (`rlhf`, `serving`)
share `contract` and nothing else.
"""
