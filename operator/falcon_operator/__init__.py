"""Run the Falcon operator: watch TrainingJobs, make their pods, and carry out what core's recovery decides."""
