"""What the native decoder does not cover runs through transformers' modules over our cache, and gives their answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import EngineConfig, LLMEngine, SamplingParams
from engine.config import EngineConfigError
from engine.models import ModelError, load
from engine.models.transformers_decoder import TransformersDecoder
from engine.runners import load_runner
from tests.engine.test_models import Paged
from tests.engine.tiny import VOCAB, make_foreign, make_tiny

ROOT = Path(__file__).parents[2]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 4.0,
        "query_pre_attn_scalar": 24,
        "tie_word_embeddings": False,
    },
    "phi3": {"sliding_window": 40, "tie_word_embeddings": False},
    "gpt_neox": {"hidden_act": "gelu", "rotary_pct": 0.25, "tie_word_embeddings": False, "head_dim": ...},
    "qwen2_moe": MOE,
    "mixtral": {"num_local_experts": 4, "sliding_window": 32},
    "gpt2": {"hidden_act": ..., "head_dim": ..., "num_key_value_heads": ..., "tie_word_embeddings": False},
}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = make_foreign(tmp_path_factory.mktemp(family) / "m", family, **FAMILIES[family])
        return made[family]

    return make


def theirs(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(path), dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def random_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_for_a_chunked_prefill(family: str, foreign: Callable[[str], Path]) -> None:
    loaded = load(foreign(family), "float32")
    assert isinstance(loaded.model, TransformersDecoder)
    tokens = random_tokens(150, 1)
    with torch.inference_mode():
        expected = theirs(foreign(family))(torch.tensor([tokens])).logits[0]
    paged, got = Paged(loaded), []
    for start, stop in pairwise([0, 1, 40, 41, 107, 150]):
        got.append(paged.step({0: tokens[start:stop]})[0])
    torch.testing.assert_close(torch.cat(got), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_answers_as_generate_does(family: str, foreign: Callable[[str], Path]) -> None:
    """Paged, in chunks, beside others, preempted, and once more from the prefix cache."""
    prompts = {
        "a": random_tokens(70, 1),
        "b": random_tokens(3, 2),
        "c": random_tokens(61, 3),
        "d": random_tokens(33, 4),
    }
    reference = theirs(foreign(family))
    expected = {}
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt])
        answer = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        expected[name] = answer[0, len(prompt) :].tolist()
    variety = {token for answer in expected.values() for token in answer}
    assert len(variety) > 15, "answers that repeat a few tokens prove little"
    config = EngineConfig(
        model=str(foreign(family)), dtype="float32", device="cpu", num_blocks=40, block_size=8, token_budget=40
    )
    engine = LLMEngine(config)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    for turn in ("first", "again"):
        answers: dict[str, list[int]] = {name: [] for name in prompts}
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, params)
        while engine.has_work():
            for output in engine.step():
                answers[output.request_id] += output.new_token_ids
        assert answers == expected, turn
    counters = engine.counters()
    assert counters["cached_tokens"] > 0
    # Where every layer has a window, the blocks behind it make the room.
    assert (counters["preemptions"] > 0) == (engine.runner.window is None)


@pytest.mark.parametrize("family", ["gemma2", "qwen2_moe"])
def test_an_answer_is_the_same_in_any_batch_when_that_is_asked_for(family: str, foreign: Callable[[str], Path]) -> None:
    """C24, for the modules of transformers: windows, softcap and experts in tiles of a fixed size."""
    config = EngineConfig(
        model=str(foreign(family)), dtype="float32", device="cpu", num_blocks=64, token_budget=48, batch_invariant=True
    )
    engine = LLMEngine(config)
    prompts = [random_tokens(count, count) for count in (50, 7, 61)]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    alone = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
    together = [answer.token_ids for answer in engine.generate(prompts, params)]
    assert together == alone


def test_the_cap_of_the_final_logits_is_kept(foreign: Callable[[str], Path]) -> None:
    logits = Paged(load(foreign("gemma2"), "float32")).step({0: random_tokens(50, 1)})[0]
    assert 3.0 < float(logits.abs().max()) <= 4.0


def test_windows_are_told_by_layer_and_as_a_whole_only_where_every_layer_has_one(
    foreign: Callable[[str], Path], tmp_path: Path
) -> None:
    gemma, phi = load(foreign("gemma2"), "float32").config, load(foreign("phi3"), "float32").config
    assert gemma.windows == (24, None, 24, None)
    assert (gemma.window, phi.window) == (None, 40)
    mistral = load(make_tiny(tmp_path / "m", "mistral", sliding_window=32), "float32").config
    assert mistral.window == 32
    assert load(make_tiny(tmp_path / "l"), "float32").config.window is None


def test_bfloat16_runs_too(foreign: Callable[[str], Path]) -> None:
    for family in ("gemma2", "qwen2_moe"):
        tokens = random_tokens(60, 1)
        exact = Paged(load(foreign(family), "float32")).step({0: tokens})[0]
        rounded = Paged(load(foreign(family), "bfloat16")).step({0: tokens})[0]
        assert float((rounded - exact).norm() / exact.norm()) < 0.15


def test_transformers_is_imported_only_for_the_models_that_need_it(tmp_path: Path) -> None:
    code = "import sys\nfrom engine import EngineConfig, LLMEngine\n"
    code += "LLMEngine(EngineConfig(model=sys.argv[1], dtype='float32', device='cpu', num_blocks=8))\n"
    code += "sys.exit('transformers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code, str(make_tiny(tmp_path))], cwd=ROOT, capture_output=True)
    assert result.returncode == 0, result.stderr


def test_asking_for_a_form_of_weights_names_what_the_decoder_cannot_run(foreign: Callable[[str], Path]) -> None:
    with pytest.raises(EngineConfigError, match="not gemma2"):
        load_runner(EngineConfig(model=str(foreign("gemma2")), weights="int8", device="cpu", num_blocks=8))


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path, "float32")
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("model_type", "config", "reason"),
    [
        ("bloom", {"head_dim": ..., "num_key_value_heads": ...}, "does not let its attention be replaced"),
        ("gpt_oss", {"num_local_experts": 4, "sliding_window": 24}, "sinks"),
        ("bert", {"hidden_act": "gelu", "head_dim": ...}, "differ from those of transformers' own attention"),
    ],
)
def test_a_model_that_our_attention_would_get_wrong_is_refused(
    model_type: str, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Biases on scores, sinks, attention in both directions: found by trying, not by name."""
    text = refusal(make_foreign(tmp_path / "m", model_type, **config))
    assert reason in text
    assert model_type in text


def test_missing_weights_are_named_and_not_made_up(foreign: Callable[[str], Path], tmp_path: Path) -> None:
    weights = load_file(foreign("phi3") / "model.safetensors")
    gone = "model.layers.1.mlp.down_proj.weight"
    save_file({name: w for name, w in weights.items() if name != gone}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((foreign("phi3") / "config.json").read_text())
    assert f"lacks weights: {gone}" in refusal(tmp_path)


def test_a_model_with_code_of_its_own_is_refused_and_the_code_not_run(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({**data, "model_type": "evil", "auto_map": auto_map}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "needs code of its own, which is never run here" in refusal(tmp_path)
    assert not (tmp_path / "ran").exists()
