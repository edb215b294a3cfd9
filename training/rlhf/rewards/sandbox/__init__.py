"""Runs a program that nobody has read: a model's answer to a programming task."""

from training.rlhf.rewards.sandbox.run import Isolation, Limits, Outcome, SandboxError, isolation, run_program

__all__ = ["Isolation", "Limits", "Outcome", "SandboxError", "isolation", "run_program"]
