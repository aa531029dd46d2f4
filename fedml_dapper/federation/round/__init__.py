"""One round: who takes part, what is received, checked and averaged, and what an experiment may ask of it besides."""
