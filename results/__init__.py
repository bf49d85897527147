"""The evidence in docs/results: what is trained, how it is read, what is written. ``make results`` runs it."""
