"""Pages of rounds, runs, checkpoints and their origins. Annotators see none of them: they judge blind."""
