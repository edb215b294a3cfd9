"""Tokens: chats encoded, labelled, packed, cached."""
