"""Sizing: what a model takes and how fast it goes on a card (memory, speed, fit), and what to choose (search)."""
