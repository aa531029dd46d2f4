"""A client's process: what it answers to the server, and the program of a device that has no FedML."""
