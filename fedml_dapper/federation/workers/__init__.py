"""Who trains a round's clients: this process, one after another, or workers side by side."""
