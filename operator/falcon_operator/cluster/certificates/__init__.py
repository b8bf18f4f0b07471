"""Hold certificates in Secrets: those of the bus, and that of the webhook."""
