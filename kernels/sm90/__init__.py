"""Templates for Hopper (SM90): wgmma with accumulators in registers, TMA into a ring of shared-memory stages."""
