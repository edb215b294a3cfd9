"""The program on each node of a job: it fetches files, starts the trainer and sends heartbeats."""
