"""Small tasks with known ends, run by the same code as everything else: tests, and documentation to run."""
