"""What development needs: a real local Kubernetes, image builds, the demo. Nothing that is shipped imports it."""
