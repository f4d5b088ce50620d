"""Tiny random models with a working tokenizer, as Hugging Face folders; what the engine's tests run on.

Written without transformers (its import alone takes seconds), but loadable by it. Biases and norms are random too,
so that a forgotten one shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.config import WEIGHTS

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS = 2
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the other dogs in the house",
    "system user assistant message answer question hello world you are a helpful assistant",
    "a tenant asks for a block table, the block pool has blocks, and the prefix is in the cache",
]
VOCAB = 384


def make_tokenizer(folder: Path, template: str = CHATML) -> None:
    """A byte-level BPE tokenizer of VOCAB entries: any text survives, the ids 0 to 2 are SPECIALS, 2 ends an answer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(s, normalized=False, special=True) for s in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    assert tokenizer.get_vocab_size() <= VOCAB
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[2],
        "model_max_length": 1_000_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)


def tiny_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json's contents; any of its keys may be given as a keyword."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [f"{ {'smollm3': 'SmolLM3'}.get(model_type, model_type.capitalize()) }ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    return {**config, **changes}


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights under Hugging Face names, scaled so that greedy answers vary."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)
    out_bias = config["model_type"] != "qwen2" and config.get("attention_bias", False)
    mlp_bias = config["model_type"] in ("llama", "smollm3") and config.get("mlp_bias", False)
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = False) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns, generator=generator) * (1.5 / columns**0.5)
        if bias:
            weights[f"{name}.bias"] = torch.randn(rows, generator=generator) * 0.3

    def norm(name: str, size: int = hidden) -> None:
        weights[f"{name}.weight"] = 1.0 + 0.2 * torch.randn(size, generator=generator)

    weights["model.embed_tokens.weight"] = torch.randn(vocab, hidden, generator=generator) * 0.5
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        linear(f"{layer}.self_attn.q_proj", query, hidden, qkv_bias)
        linear(f"{layer}.self_attn.k_proj", kv, hidden, qkv_bias)
        linear(f"{layer}.self_attn.v_proj", kv, hidden, qkv_bias)
        linear(f"{layer}.self_attn.o_proj", hidden, query, out_bias)
        linear(f"{layer}.mlp.gate_proj", inner, hidden, mlp_bias)
        linear(f"{layer}.mlp.up_proj", inner, hidden, mlp_bias)
        linear(f"{layer}.mlp.down_proj", hidden, inner, mlp_bias)
        if config["model_type"] == "qwen3":
            norm(f"{layer}.self_attn.q_norm", config["head_dim"])
            norm(f"{layer}.self_attn.k_norm", config["head_dim"])
        norm(f"{layer}.input_layernorm")
        norm(f"{layer}.post_attention_layernorm")
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        linear("lm_head", vocab, hidden)
    return weights


def make_tiny(
    folder: Path, model_type: str = "llama", *, seed: int = 0, template: str = CHATML, shards: int = 1, **config: Any
) -> Path:
    """Write a whole tiny model to `folder` (made when missing) and return it. `config` changes keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    data = tiny_config(model_type, **config)
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": data["eos_token_id"]}))
    make_tokenizer(folder, template)
    weights = tiny_weights(data, seed)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    where = {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[i::shards])
        save_file(part, folder / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def numeric(kind: str) -> dict[str, str]:
    """An engine's settings for one of the C++ decoder's forms of weights, or for one of torch's dtypes."""
    return {"weights" if kind in WEIGHTS else "dtype": kind}


def make_foreign(folder: Path, model_type: str, *, seed: int = 0, **config: Any) -> Path:
    """As make_tiny, for any causal language model of transformers; imports it. Every weight is random, norms included.

    `config`: keyword arguments of the family's config class, added to a shape that most of them understand.
    """
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.utils.logging.disable_progress_bar()
    data = {key: value for key, value in tiny_config(model_type).items() if key not in ("model_type", "architectures")}
    data = {key: value for key, value in {**data, **config}.items() if value is not ...}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**data), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:  # biases start at zero, norms at one or, where one is added, at zero
                weight.add_(torch.randn(weight.shape) * 0.2)
            elif "embed" in name or "wte" in name or "wpe" in name:
                weight.normal_(std=0.5)
            else:
                weight.normal_(std=1.5 / weight.shape[-1] ** 0.5)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(folder))
    make_tokenizer(folder)
    return folder
