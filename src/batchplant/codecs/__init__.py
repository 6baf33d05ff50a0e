"""Bytes to values and back: ``cells`` for every field kind, ``image`` for pictures."""
