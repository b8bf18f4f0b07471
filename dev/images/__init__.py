"""Build Falcon's images by buildah, without a registry, into archives that a node's containerd imports."""
