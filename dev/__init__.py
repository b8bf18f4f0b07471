"""Build and run what development needs: a real local Kubernetes, images, the demo. No shipped program imports it."""
