"""DapperFL and its relatives on FedML: every client trains a physically slim model of its own."""

__version__ = "0.1.0"
