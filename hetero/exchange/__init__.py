"""Rows between towers and servers: one client protocol (pull, push), gradients merged in a fixed order."""
