"""``model_args.adapter``: low-rank matrices that learn beside a frozen network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedml_dapper.config.limits import MAX_WIDTH
from fedml_dapper.config.section import Section

Target = Annotated[str, Field(min_length=1)]


class AdapterArgs(Section):
    """``model_args.adapter``: only adapters, norms and the last linear layer are trained (docs/adapters.md)."""

    kind: Literal["lora"] = "lora"
    """``lora``: beside a layer's matrix W learns the product B A of two low-rank ones (Hu et al., ICLR 2022)."""
    rank: int = Field(default=16, ge=2, le=MAX_WIDTH)
    """Rank r of the strongest level: rows of A and columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """Strength: the product counts alpha / r times, whatever rank a weaker level keeps."""
    targets: tuple[Target, ...] | None = None
    """Linear layers that get an adapter, by name or by the name's last parts (``[q_proj, v_proj]``); when absent all
    that run, but for the last one."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the adapters' inputs that training leaves out."""
