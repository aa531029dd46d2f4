"""So that `python -m tests...` finds these, and not what else is called so on the path."""
