"""Files of runs, checkpoints and uploads: on this machine and in the shared store."""
