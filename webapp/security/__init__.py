"""Sign-in: password, second factor, passkey, other sites; lockout; sessions."""
