"""The same work by other simulators of federated learning, one module each, beside ours.

``work`` holds network, data and settings of all of them. ``python -m benchmarks.peers`` runs them in turns, each in a
process and an environment of its own, which ``bash benchmarks/peers/setup.sh`` makes.
"""
