"""Pages on which checkpoints are compared blind: side by side, and in arenas. All work without JavaScript."""
