"""Where models come from: folders, shards, the hub; what is refused, in one line each; what the revision notices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models import ModelConfig, ModelError, load
from engine.models import loader as loader_module
from engine.models.config import read_config
from engine.models.errors import NotNative
from engine.models.loader import choose_dtype
from tests.engine.tiny import make_tiny

ROOT = Path(__file__).parents[2]


def refusal(path: str | Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path, "float32")
    text = str(caught.value)
    assert "\n" not in text
    return text


def change_config(folder: Path, **changes: Any) -> None:
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, **changes}))


def test_a_path_that_does_not_exist_is_refused_at_once_and_not_looked_up_online(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing").endswith("name a model folder, a .gguf file or a hub id like owner/name.")
    assert "does not exist" in refusal("missing.gguf")
    code = "import sys\nfrom engine.models import load\ntry: load('/no/such/model')\nexcept Exception: pass\n"
    code += "sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither a folder with config.json nor a GGUF file" in refusal(tmp_path / "notes.txt")
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    assert "not a JSON object" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "is an encoder-decoder (t5)"),
        ({"model_type": "mystery", "is_encoder_decoder": True}, "is an encoder-decoder (mystery)"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "is a mamba: a state-space or hybrid model"),
        ({"model_type": "rwkv"}, "is a rwkv: a state-space"),
        ({"model_type": "jamba"}, "is a jamba: a state-space"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "with layers of linear_attention: a state-space"),
        ({"model_type": "llava", "vision_config": {"hidden_size": 8}}, "images or sound and text (llava)"),
        ({"model_type": "qwen2_audio", "audio_config": {"hidden_size": 8}}, "images or sound and text (qwen2_audio)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no head that predicts the next token"),
        ({"model_type": "vit", "architectures": None}, "no head that predicts the next token"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "no head that predicts the next token"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by the method 'gptq'"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "mystery"}, "has model_type 'mystery', which is unknown here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_path_can_run_is_refused_with_what_it_is_and_what_to_use(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_tiny(tmp_path, "llama")
    change_config(tmp_path, **changes)
    text = refusal(tmp_path)
    assert reason in text
    assert "use a" in text or "use the unquantised model" in text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "phi3"}, "phi3"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 0]}, "no_rope_layers has 3 entries for 2 layers"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "0.5"),
    ],
)
def test_what_the_native_decoder_cannot_compute_exactly_is_not_its_own(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    make_tiny(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(NotNative, match=re.escape(named)):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"hidden_size": "big"}, "hidden_size='big'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
    ],
)
def test_a_damaged_config_is_refused(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    make_tiny(tmp_path)
    change_config(tmp_path, **changes)
    assert named in refusal(tmp_path)


def test_missing_wrong_and_unknown_weights_are_named(tmp_path: Path) -> None:
    file = make_tiny(tmp_path) / "model.safetensors"
    weights = load_file(file)
    gone = "model.layers.1.mlp.up_proj.weight"
    save_file({name: w for name, w in weights.items() if name != gone}, file)
    assert gone in refusal(tmp_path)
    save_file({**weights, gone: weights[gone][:-1].clone()}, file)
    assert gone in refusal(tmp_path)
    assert "[95, 64]" in refusal(tmp_path)
    save_file({**weights, "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, file)
    assert "does not know: model.layers.0.self_attn.q_proj.bias" in refusal(tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    assert "is damaged" in refusal(tmp_path)
    file.unlink()
    assert "model.safetensors is missing" in refusal(tmp_path)


def test_a_sharded_model_equals_the_same_model_in_one_file(tmp_path: Path) -> None:
    one = load(make_tiny(tmp_path / "one", tie_word_embeddings=False), "float32")
    three = load(make_tiny(tmp_path / "three", tie_word_embeddings=False, shards=3), "float32")
    hidden = torch.randn(3, 64)
    assert torch.equal(one.model.logits(hidden), three.model.logits(hidden))
    assert torch.equal(one.model.layers[1].input_layernorm, three.model.layers[1].input_layernorm)
    (tmp_path / "three" / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing" in refusal(tmp_path / "three")


def test_a_tied_head_may_be_stored_as_well(tmp_path: Path) -> None:
    file = make_tiny(tmp_path) / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, file)
    assert load(tmp_path, "float32").config.tie_embeddings


def test_the_revision_changes_with_weights_and_config_and_with_nothing_else(tmp_path: Path) -> None:
    """C6, the loader's half: what the prefix cache keys on."""
    first = load(make_tiny(tmp_path / "a", seed=1), "float32").revision
    again = make_tiny(tmp_path / "b", seed=1)
    os.utime(again / "model.safetensors", (1, 1))
    assert load(again, "float32").revision == first
    assert load(make_tiny(tmp_path / "a", seed=2), "float32").revision != first, "the same name, other weights"
    change_config(again, rms_norm_eps=1e-6)
    assert load(again, "float32").revision != first


def test_the_end_tokens_of_generation_config_and_config_count_together(tmp_path: Path) -> None:
    make_tiny(tmp_path, eos_token_id=2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert load(tmp_path, "float32").config.eos_token_ids == (5, 2)


def test_dtype_auto_is_bfloat16_where_the_processor_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for flags, expected in (
        ({"avx2"}, torch.float32),
        ({"avx512f", "avx512_bf16"}, torch.bfloat16),
        ({"amx_bf16"}, torch.bfloat16),
    ):
        monkeypatch.setattr(loader_module, "cpu_flags", lambda flags=flags: frozenset(flags))
        assert choose_dtype("auto", cpu) == expected
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float16", cpu) == choose_dtype(torch.float16, cpu) == torch.float16
    with pytest.raises(ModelError, match="choose auto"):
        choose_dtype("int3", cpu)


def test_the_kv_of_a_token_is_counted_in_bytes(model_path: str) -> None:
    config: ModelConfig = load(model_path, "bfloat16").config
    assert config.kv_bytes_per_token(2) == 23040
    assert config.eos_token_ids == (2,)


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as its client needs to fetch a repository: its listing and its files."""

    folder: Path
    commit = "0" * 40

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        files = sorted(file.name for file in self.folder.iterdir())
        if path.startswith("/api/models/owner/tiny/tree/"):
            entries = [{"type": "file", "path": f, "size": (self.folder / f).stat().st_size, "oid": f} for f in files]
            return self.send(json.dumps(entries).encode(), body, "application/json")
        if path.startswith("/api/models/owner/tiny"):
            listing = {"id": "owner/tiny", "sha": self.commit, "siblings": [{"rfilename": f} for f in files]}
            return self.send(json.dumps(listing).encode(), body, "application/json")
        name = path.rsplit("/", 1)[-1]
        if path.startswith("/owner/tiny/resolve/") and name in files:
            return self.send((self.folder / name).read_bytes(), body, "application/octet-stream", etag=name)
        self.send_error(404)

    def send(self, data: bytes, body: bool, kind: str, etag: str = "x") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    handler = type("TinyHub", (Hub,), {"folder": make_tiny(tmp_path / "served")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def in_process(home: Path, model: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Load a model in a new process (the hub's client reads its settings once), printing its type or the refusal."""
    code = "import sys\nfrom engine.models import load, ModelError\n"
    code += "try: print(load(sys.argv[1], 'float32').config.model_type)\nexcept ModelError as e: print('refused:', e)"
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    return subprocess.run([sys.executable, "-c", code, model], cwd=ROOT, env=env, capture_output=True, text=True)


def test_a_hub_id_is_downloaded_once_and_serves_offline_afterwards(hub: str, tmp_path: Path) -> None:
    online = in_process(tmp_path / "home", "owner/tiny", HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert online.stdout == "llama\n", online.stderr
    offline = in_process(tmp_path / "home", "owner/tiny", HF_HUB_OFFLINE="1")
    assert offline.stdout == "llama\n", offline.stderr


def test_a_hub_id_that_cannot_be_had_is_refused_in_one_line(tmp_path: Path) -> None:
    result = in_process(tmp_path / "home", "owner/tiny", HF_HUB_OFFLINE="1")
    assert result.stdout.startswith("refused: owner/tiny is no local folder, and the hub did not give it (")
    assert result.stdout.count("\n") == 1
