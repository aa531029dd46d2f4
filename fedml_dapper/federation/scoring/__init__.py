"""What is measured after a round, of whose model, and on what."""
