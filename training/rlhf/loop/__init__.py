"""The training loop: steps, state, checkpoints, stopping."""
