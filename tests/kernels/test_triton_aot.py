"""What a GPU would be given: kernels compile for every generation within their limits, and once for any batch.

Each test runs a process of its own, since this one interprets kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def aot(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "kernels.triton.aot", *arguments)


def test_kernels_compile_for_a_gpu_within_their_limits() -> None:
    kernels = ["_rope_write_kv", "_add_rms_norm", "_copy_blocks"]
    done = aot("--first", "--capability", "90", *(word for name in kernels for word in ("--kernel", name)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 builds, 0 complaints." in done.stdout
    for name in kernels:
        assert f"\n{name} " in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_kernels_compile_for_all_gpus_within_their_limits() -> None:
    done = aot()
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 complaints." in done.stdout


def test_a_kernel_over_its_limit_or_without_one_fails_the_build(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("[_copy_blocks]\nregisters = 2\nshared = 0\nspills = 0\n")
    kernels = ("--kernel", "_copy_blocks", "--kernel", "_silu_mul")
    done = aot("--first", "--capability", "90", "--limits", str(limits), *kernels)
    assert done.returncode == 1
    assert "_copy_blocks takes" in done.stdout
    assert "more than its limit of 2." in done.stdout
    assert "_silu_mul has no limit" in done.stdout


def test_no_number_of_rows_compiles_a_kernel_anew() -> None:
    """K14: one key per kernel, over batches of 1 to 4,096 rows; two where a residual, or scales, make two kernels."""
    done = run("-m", "tests.kernels.triton_keys")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "_add_rms_norm": 2,
        "_rope_write_kv": 1,
        "_write_kv": 1,
        "_silu_mul": 1,
        "_copy_blocks": 2,
        "_pick": 1,
    }


def test_the_api_and_the_torch_path_need_no_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, kernels.api as api\n"
        "api.silu_mul(torch.zeros(2, 8))\n"
        "try:\n    import kernels.triton\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the GPU path needs the package triton")
