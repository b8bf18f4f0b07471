"""Model the simulated job: its calls, iterations and bytes."""
