"""People: accounts, tokens, keyboard shortcuts."""
