"""Find which pod should take which role, where links are not alike."""
