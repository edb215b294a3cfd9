"""Arithmetic that is easy with a calculator, which the policy calls as a tool of its chat template."""
