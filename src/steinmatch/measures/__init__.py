"""What particles are measured by: Stein's operator, velocity, discrepancies, weights that solve Stein equations."""
