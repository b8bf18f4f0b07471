"""Record real training jobs, healthy and with faults, as the anomaly service is sent them."""
