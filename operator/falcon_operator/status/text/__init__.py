"""Write the sentences that a job's owner reads in the status."""
