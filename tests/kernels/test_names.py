"""Our package's name is no trouble to others."""

from __future__ import annotations

import subprocess
import sys


def test_transformers_imports_beside_our_package() -> None:
    """transformers probes for a package called kernels, and finds ours."""
    code = "import kernels.api, transformers; from transformers import LlamaForCausalLM, LlamaConfig"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
