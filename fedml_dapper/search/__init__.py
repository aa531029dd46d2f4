"""Hyper-parameter search on validation samples: which settings to try next, and what came of it."""
