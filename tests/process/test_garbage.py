"""What lasts as long as a run, and the garbage collector."""

from __future__ import annotations

import gc
import weakref

from fedml_dapper.process.garbage import lasting_objects_left_alone


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_left_alone_until_the_block_ends() -> None:
    with lasting_objects_left_alone() as leave_alone:
        assert gc.get_freeze_count() == 0
        leave_alone()
        frozen = gc.get_freeze_count()
        assert frozen > 1000
        lasting = [Node() for _ in range(100)]
        leave_alone()
        assert gc.get_freeze_count() <= frozen, "only the first call does anything"
        assert len(lasting) == 100
    assert gc.get_freeze_count() == 0


def test_later_garbage_is_collected_all_the_same() -> None:
    with lasting_objects_left_alone() as leave_alone:
        leave_alone()
        node = Node()
        gone = weakref.ref(node)
        del node
        gc.collect()
        assert gone() is None
