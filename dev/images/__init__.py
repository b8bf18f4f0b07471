"""Builds the images of the project and of its example with buildah, from the project's own Dockerfiles."""
