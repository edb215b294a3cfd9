"""The process that trains: its device, run folder, peers, signals."""
