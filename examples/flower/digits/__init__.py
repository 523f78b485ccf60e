"""Digits learned from clients that defend their gradients: one app, simulated or deployed."""
