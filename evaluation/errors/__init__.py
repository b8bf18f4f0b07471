"""Does the table of error classes judge lines well that its rules were, and were not, written from?"""
