"""How time and power follow the clock: GPU catalogue and priors. Measured models join them later."""
