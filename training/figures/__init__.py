"""Figures and report parts, as plain values for templates. Uses no database."""
