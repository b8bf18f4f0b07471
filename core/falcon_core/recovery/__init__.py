"""Decide the cheapest repair of a job from what one look shows; pure, and no clock is read here."""
