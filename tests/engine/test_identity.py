"""Which model it is: one SHA-256, refused where it is another; and weights that could run code are never loaded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import digest, worker
from engine.models import ModelError, load
from engine.models.convert import convert
from engine.models.identity import check, of_folder
from ops.setup import MODEL_DIR_SHA256, MODEL_SHA256
from tests.engine.test_loader_convert import write_gguf
from tests.engine.tiny import make_foreign, make_tiny

ROOT = Path(__file__).parents[2]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def said(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert digest.main([str(path)]) == 0
    return capsys.readouterr().out.strip()


def test_a_files_digest_is_its_own_and_a_folders_that_of_sha256sum_over_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_tiny(tmp_path / "m")
    (folder / "README.md").write_text("not read by a loader")
    file = write_gguf(tmp_path / "m.gguf", folder)
    assert said(file, capsys) == hashlib.sha256(file.read_bytes()).hexdigest()
    command = "LC_ALL=C ls *.safetensors *.json *.jinja | LC_ALL=C sort | xargs sha256sum | sha256sum"
    listed = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True).stdout
    assert said(folder, capsys) == listed.split()[0]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_one_bit_of_any_file_that_is_read_makes_another_model(name: str, tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    before = of_folder(folder)
    check(folder, before.upper())
    flip(folder / name)
    with pytest.raises(ModelError, match="is not the one that OCTAVO_MODEL_SHA256 asks for") as caught:
        check(folder, before)
    assert "\n" not in str(caught.value)
    assert before in str(caught.value)
    assert of_folder(folder) in str(caught.value)


def test_a_file_that_is_added_makes_another_model(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    before = of_folder(folder)
    (folder / "added_tokens.json").write_text("{}")
    assert of_folder(folder) != before


def test_a_converted_folder_goes_by_its_files_digest_until_something_in_it_changes(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_tiny(tmp_path / "m"))
    wanted = hashlib.sha256(file.read_bytes()).hexdigest()
    folder = convert(file, tmp_path / "converted")
    check(folder, wanted)
    check(folder, of_folder(folder))
    flip(folder / "model.safetensors")
    with pytest.raises(ModelError, match="is not the one"):
        check(folder, wanted)


def test_a_digest_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="OCTAVO_MODEL_SHA256=abc is no SHA-256"):
        check(make_tiny(tmp_path / "m"), "abc")


def test_what_is_no_model_has_no_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert digest.main([str(tmp_path / "nothing")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert digest.main([]) == 2


def test_a_worker_refuses_another_model_in_one_line_before_it_asks_for_redis(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    env = {**os.environ, "OCTAVO_MODEL_SHA256": "0" * 64, "OCTAVO_MODEL": str(folder)}
    command = [sys.executable, "-m", "engine.worker", "--redis", "redis://127.0.0.1:1/0"]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "is not the one that OCTAVO_MODEL_SHA256 asks for" in result.stderr
    assert of_folder(folder) in result.stderr


def test_with_the_right_digest_a_worker_goes_on_to_redis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny(tmp_path / "m")
    options = ["--model", str(folder), "--model-sha256", of_folder(folder), "--redis-wait-s", "0.1"]
    assert worker.main([*options, "--redis", "redis://127.0.0.1:1/0"]) == 1
    assert "SHA256" not in (told := capsys.readouterr().err)
    assert "Redis" in told


def test_the_default_model_is_the_one_that_the_project_names(model_path: str) -> None:
    if os.environ.get("OCTAVO_TEST_MODEL"):
        pytest.skip("the tests run with a model of somebody's own")
    assert of_folder(Path(model_path)) == MODEL_DIR_SHA256
    assert json.loads((Path(model_path) / "octavo.json").read_text())["source_sha256"] == MODEL_SHA256


class Trap:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def trap(file: Path, sprung: Path) -> None:
    torch.save({"model.embed_tokens.weight": Trap(sprung)}, file)


def test_the_trap_works(tmp_path: Path) -> None:
    trap(tmp_path / "x.bin", tmp_path / "sprung")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("family", ["llama", "phi3"], ids=["our own decoder", "through transformers"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_and_never_opened(family: str, name: str, tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m") if family == "llama" else make_foreign(tmp_path / "m", family)
    (folder / "model.safetensors").unlink()
    trap(folder / name, tmp_path / "sprung")
    with pytest.raises(ModelError, match=f"weights in {name}, and loading that could run any code") as caught:
        load(folder, "float32")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("family", ["llama", "phi3"], ids=["our own decoder", "through transformers"])
def test_pickled_weights_beside_the_others_are_left_alone(family: str, tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m") if family == "llama" else make_foreign(tmp_path / "m", family)
    trap(folder / "pytorch_model.bin", tmp_path / "sprung")
    load(folder, "float32")
    assert not (tmp_path / "sprung").exists()


def test_an_index_cannot_name_other_files(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    trap(folder / "weights.bin", tmp_path / "sprung")
    index = {"weight_map": {"model.embed_tokens.weight": "weights.bin", "x": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names weights\.bin: only \.safetensors files are loaded"):
        load(folder, "float32")
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_that_calls_itself_safetensors_is_damaged(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    trap(folder / "model.safetensors", tmp_path / "sprung")
    with pytest.raises(ModelError, match="is damaged"):
        load(folder, "float32")
    assert not (tmp_path / "sprung").exists()
