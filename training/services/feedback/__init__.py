"""Requests of applications and the feedback of their end users: stored, received, checked, put to use."""
