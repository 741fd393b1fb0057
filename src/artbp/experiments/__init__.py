"""The paper's experiments: each runs by one command and leaves data, and its figures are drawn from the data."""
