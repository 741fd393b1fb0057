"""Recurrences with links: the specification (`naive`) and the fast paths that must agree with it."""
