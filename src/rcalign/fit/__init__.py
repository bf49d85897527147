"""From data to a model that one can defend: look, compare, choose, say what to expect, train, report."""
