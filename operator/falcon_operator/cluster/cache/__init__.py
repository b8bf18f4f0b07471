"""Keep what the operator watches of the API server in memory."""
