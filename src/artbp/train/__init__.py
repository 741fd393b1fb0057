"""A character model trained online on any text: a leaf that shows how the library is used, and that nothing imports."""
