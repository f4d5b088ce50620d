"""A matrix product whose weight can be laid out for the processor once, at load.

On CPUs oneDNN's own layout makes products with few rows, which decode consists of, 1.5 to 2 times as fast in bfloat16,
and several times in float32 where torch's default library is slow (AMD). A row's result does not depend on
how many rows there are beside it. On other devices, or where torch was built without oneDNN, the weight stays plain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  torch's own usual name
from torch import Tensor, nn

# What the layout is made for; it serves every number of rows, and is best near this one.
EXPECTED_ROWS = 16


class Linear(nn.Module):
    """x [T, inputs] -> x @ weight.T + bias, [T, outputs], in x's dtype."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self._packed: Tensor | None = None

    def pack(self, *, keep_weight: bool = False) -> None:
        """Lay the weight out for this CPU, where that is possible; the plain copy is freed unless `keep_weight`."""
        if not packable(self.weight):
            return
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), EXPECTED_ROWS)
        if not keep_weight:
            self.weight = nn.Parameter(torch.empty(0, dtype=self.weight.dtype), requires_grad=False)

    @classmethod
    def of(cls, plain: nn.Linear) -> Linear:
        """The same product as torch's own module, sharing its weight and bias until it is packed."""
        with torch.device("meta"):
            linear = cls(plain.in_features, plain.out_features, bias=plain.bias is not None)
        linear.weight = nn.Parameter(plain.weight, requires_grad=False)
        linear.bias = None if plain.bias is None else nn.Parameter(plain.bias, requires_grad=False)
        return linear

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or not x.numel():
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
