"""What kernels would be compiled for, without a GPU: launches are noted instead of made.

Works where kernels are not interpreted. A launch's key is what Triton itself compares to tell whether it has compiled
a kernel already: types and values of compile-time constants, whether pointers and strides divide by 16, and options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

E4M3 = "*fp8e4nv"


class Variant(NamedTuple):
    """One thing to compile: a kernel, the type of each argument ("constexpr" among them), constants, options.

    attributes: what is known of arguments, by their index; None: every pointer and stride divides by 16. capabilities:
    the compute capabilities that it is meant for, all where there are none.
    """

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    attributes: dict[tuple[int, ...], Any] | None = None
    capabilities: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    variant: Variant
    key: str
    grid: tuple[int, ...]


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """Collect launches, also of tensors in host memory; outputs stay as they were."""
    noted: list[Launch] = []
    backend = make_backend(GPUTarget("cuda", 90, 32))

    def note(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, kinds, options = binder(*arguments, **named)
        names = list(bound)
        signature = {name: kind[0] for name, kind in zip(names, kinds, strict=True)}
        variant = Variant(
            kernel,
            signature,
            {name: bound[name] for name in names if signature[name] == "constexpr"},
            options,
            {
                (number,): backend.parse_attr(kind[1])
                for number, kind in enumerate(kinds)
                if kind[0] != "constexpr" and isinstance(kind[1], str)
            },
        )
        noted.append(Launch(variant, f"{kernel.__name__} {kinds} {options}", tuple(grid)))

    launch = JITFunction.run
    JITFunction.run = note
    try:
        yield noted
    finally:
        JITFunction.run = launch


def with_e4m3(found: Iterable[Variant]) -> list[Variant]:
    """Those given, and for each that takes eight-bit floats as bytes one that takes them as what they are."""
    out = []
    for one in found:
        out.append(one)
        if "*u8" in one.signature.values():
            signature = {name: E4M3 if kind == "*u8" else kind for name, kind in one.signature.items()}
            out.append(one._replace(signature=signature))
    return out
