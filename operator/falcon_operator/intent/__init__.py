"""The durable facts about a job, what is seen of the job, and how the facts follow from what is seen."""
