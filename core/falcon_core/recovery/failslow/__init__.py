"""Keep the open slowdowns, and judge what came of a replacement."""
