"""Remember what happened on nodes and in earlier slowdowns, and weigh it."""
