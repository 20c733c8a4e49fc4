"""The kernel of absorbed latent attention: one function per role of warps."""
