"""What server, edges and clients tell each other, as bytes, and which versions understand it."""
