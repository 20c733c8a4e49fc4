"""Templates for Blackwell (SM100): tcgen05.mma with accumulators in tensor memory, TMA into rings of shared memory."""
