"""The registry of checkpoints."""
