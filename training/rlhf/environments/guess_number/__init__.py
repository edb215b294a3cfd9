"""Guess a number from 1 to 10; each guess is answered with higher or lower."""
