"""Random streams: seeded ones, a keystream, and whole-numbered noise."""
