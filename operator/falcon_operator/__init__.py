"""The Falcon operator: watches TrainingJobs, renders their pods, and carries out what core's recovery decides."""
