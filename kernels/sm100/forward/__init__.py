"""The forward kernel: one function per role of warps."""
