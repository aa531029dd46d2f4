"""This process: its interruption, its memory, what it loads and when, and where its time goes."""
