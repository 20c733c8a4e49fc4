"""What every template shares: expressions over CuTe values, tile bounds, masks, scores, softmax, the order of tiles."""
