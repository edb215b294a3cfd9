"""What runs on each node of a job: it fetches files, starts the trainer and gives signs of life."""
