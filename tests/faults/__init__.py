"""What is killed, cut off and stopped while a round goes on, and the ledger that says what was lost."""
