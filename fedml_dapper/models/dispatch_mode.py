"""What modes over torch's elementary operations have in common."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of torch that does not load ``torch.compile``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch ships it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer torch's question to every mode; True, the default, imports all of ``torch.compile``."""
        return False
