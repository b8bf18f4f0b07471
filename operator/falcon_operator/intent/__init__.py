"""What is durable about a job, what is seen of it, and how the one follows from the other."""
