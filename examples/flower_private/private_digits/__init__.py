"""Digits learned with (ε, δ) for each digit of each client."""
