"""Which runner a model gets on this machine, and why. One log line says so, and what else would be lost."""

from __future__ import annotations

import re

import structlog
import torch

from engine.config import EngineConfig, EngineConfigError
from engine.cpu_runner import CpuRunner
from engine.models.config import read_config
from engine.models.errors import NotNative
from engine.models.source import resolve
from engine.runner import ModelRunner, Runner
from kernels.cpu import ops

log = structlog.get_logger(__name__)


def load_runner(config: EngineConfig) -> ModelRunner:
    """The C++ decoder on a CPU where it can run the model, else torch: our own decoder, else transformers' modules.

    A dtype insists on torch, weights insist on the C++ decoder; "auto" for both leaves the choice to us. Raises
    ModelError, EngineConfigError.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise EngineConfigError(f"device {config.device!r} is not one that this engine runs on: auto, cpu, cuda.")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise EngineConfigError(f"device {config.device}: torch finds no GPU here; leave the device out, or say cpu.")
    on_cpu = config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())
    insists = config.weights != "auto"
    if insists and not on_cpu:
        raise EngineConfigError(f"weights {config.weights} are for a CPU only, not for the device {config.device!r}.")
    if config.tensor_parallel > 1:
        from engine.tensor_parallel import load_leader

        return load_leader(config, on_cpu=on_cpu)
    shape, not_native, told = None, None, None
    try:
        shape = read_config(resolve(config.model))
    except NotNative as reason:
        not_native = str(reason)
    if on_cpu and config.dtype == "auto":
        why_not = not_native if shape is None else CpuRunner.why_not(config, shape)
        if why_not is None:
            runner = CpuRunner(config)
            log.info(
                "runner.cpu",
                isa=runner.isa,
                weights=runner.weights,
                threads=runner.threads,
                blocks=runner.num_blocks,
            )
            return runner
        if insists:
            raise EngineConfigError(f"weights {config.weights} cannot be had for {config.model}: {why_not}.")
        if shape is not None:
            told = why_not
            log.warning("runner.torch", reason=why_not, lost="several times the speed on this CPU")
    if not_native is not None:
        log.warning("runner.transformers", reason=not_native, lost="the speed of our own decoder")
    if on_cpu and (missing := ops.why_not()) is not None and missing != told:
        log.warning("runner.kernels", reason=missing, lost="half the speed of attention on this CPU and more")
    return Runner.load(config)
