"""Notebooks, kept with the output of their last run: ``python -m docs.tutorials`` runs them again."""
