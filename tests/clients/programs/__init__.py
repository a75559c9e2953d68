"""Agents, frameworks and commands that others have written, with a running server. packages.py says which."""
