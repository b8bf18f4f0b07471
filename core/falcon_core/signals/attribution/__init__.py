"""Divide an iteration's time into computation, waiting and transfer."""
