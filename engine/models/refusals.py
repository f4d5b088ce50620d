"""Models that no path of this engine can run, told by their config.json before anything slow is tried.

What a config does not give away is found out later: engine.models.fallback compares with transformers' own answer.
"""

from __future__ import annotations

from typing import Any

from engine.models.errors import ModelError

USE_INSTEAD = "use a decoder-only language model, such as a Llama, Mistral, Qwen or SmolLM"

_ENCODER_DECODER = frozenset(
    ("t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "nllb-moe", "blenderbot", "led")
)
_STATE_SPACE = frozenset(
    (
        *("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "jamba", "bamba", "zamba", "zamba2", "recurrent_gemma"),
        *("falcon_h1", "nemotron_h", "granitemoehybrid", "qwen3_next", "olmo_hybrid", "kimi_linear", "lfm2"),
    )
)
_ATTENTION_LAYERS = frozenset(("full_attention", "sliding_attention"))
_OTHER_SENSES = ("vision_config", "audio_config", "speech_config", "image_token_id", "audio_token_id")
_CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")


def refuse(data: dict[str, Any], name: str) -> None:
    """Raise ModelError when the contents of config.json describe such a model; `name` says which one is meant."""
    model_type = data.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError(f"{name} names no model_type in its config.json; fetch the model again, or {USE_INSTEAD}.")
    if data.get("is_encoder_decoder") or model_type in _ENCODER_DECODER:
        raise ModelError(f"{name} is an encoder-decoder ({model_type}), which this engine does not run; {USE_INSTEAD}.")
    others = sorted(set(data.get("layer_types") or ()) - _ATTENTION_LAYERS)
    if model_type in _STATE_SPACE or others:
        layers = f" with layers of {', '.join(others)}" if others else ""
        raise ModelError(
            f"{name} is a {model_type}{layers}: a state-space or hybrid model, whose layers keep something other than "
            f"the keys and values of all tokens, which this engine does not run; {USE_INSTEAD}."
        )
    if any(data.get(key) is not None for key in _OTHER_SENSES):
        raise ModelError(
            f"{name} is a model of images or sound and text ({model_type}), which this engine does not run; "
            f"{USE_INSTEAD}."
        )
    architectures = data.get("architectures") or []
    if architectures and not any(str(a).endswith(_CAUSAL_HEADS) for a in architectures):
        raise ModelError(f"{name} is a {architectures[0]}: it has no head that predicts the next token; {USE_INSTEAD}.")
    quantised = data.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else "unknown"
        raise ModelError(
            f"{name} has weights quantised by the method {method!r}, which this engine does not read; use the "
            "unquantised model or a GGUF file of it."
        )
