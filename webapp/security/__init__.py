"""Who signs in and how: password, second factor, passkey, other sites; what stops guessing; sessions."""
