"""Speak with the launcher: its plan, its status, its output."""
