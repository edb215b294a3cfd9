"""A model server of several bases: one process for each, started on demand, behind one address.

python -m training.serving.router --models var/models --checkpoints var/checkpoints
"""
