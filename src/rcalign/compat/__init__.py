"""Our algorithms inside other people's code."""
