"""From an analysed trace to a plan: which clock for which GPU, at which slowdown, for which saving."""
