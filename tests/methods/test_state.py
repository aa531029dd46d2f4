from __future__ import annotations

import torch

from fedml_dapper.methods import Memory


def test_keep_copies_and_replaces_its_group_only() -> None:
    memory, tensor = Memory(), torch.ones(2)
    memory.keep("model", {"a": tensor, "b": torch.zeros(1)})
    memory.keep("models", {"a": torch.zeros(3)})
    tensor += 1
    assert memory.recall("model")["a"].tolist() == [1.0, 1.0]
    memory.keep("model", {"c": torch.zeros(1)})
    assert memory.recall("model").keys() == {"c"}
    assert memory.recall("models").keys() == {"a"}
    assert memory.recall("nothing") == {}
