"""What a cubin says of the resources of its kernel; the runtime reads the same."""

from attn_dsl.runtime.cubin import Resources, resources

__all__ = ["Resources", "resources"]
