"""Processes killed, cut off and stopped during a round, and the ledger that shows what was lost."""
