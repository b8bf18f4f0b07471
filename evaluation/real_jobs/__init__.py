"""Jobs as people run them, through the whole chain from ring records to the recovery's actions."""
