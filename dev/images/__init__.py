"""Falcon's images, built by buildah without a registry: into archives that a node's containerd imports."""
