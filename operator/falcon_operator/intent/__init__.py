"""Keep the durable facts about a job, observe the job, and derive new facts from the observation."""
