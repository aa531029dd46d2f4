"""A simulator that says it trained, and did not: for ``test_peers``."""

from __future__ import annotations

from benchmarks.peers.work import Diary, given, network_of_process

if __name__ == "__main__":
    work, folder = given()
    network = network_of_process(work, folder)
    diary = Diary(folder)
    for _ in range(work.rounds):
        diary.round_ended()
    diary.keep(network)
