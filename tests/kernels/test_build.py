"""The C++ libraries are built once, used wherever they are, and what keeps that from happening is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.cpu import build
from kernels.cpu.build import BuildError, library_path, open_library


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "kernels"


def compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "my-g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_what_was_built_is_used_where_there_is_no_compiler_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = library_path("portable", "ops")
    monkeypatch.setenv("PATH", "")
    assert library_path("portable", "ops") == built
    with pytest.raises(BuildError, match="no C\\+\\+ compiler found"):
        library_path("avx2", "ops")


@pytest.mark.parametrize("script", ["exit 0", 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"', "exit 3"])
def test_a_compiler_that_builds_nothing_usable_is_an_error_and_leaves_nothing_behind(
    script: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    with pytest.raises(BuildError) as caught:
        library_path("portable", "ops")
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_cxx_may_have_several_words_and_an_empty_one_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    assert Path(build.find_compiler()[0]).name in ("g++", "clang++")
    monkeypatch.setenv("CXX", "env g++")
    assert build.find_compiler() == ["env", "g++"]
    monkeypatch.setenv("CXX", "nonsense -O1")
    with pytest.raises(BuildError, match="the compiler nonsense is not there; correct CXX, or leave it out"):
        build.find_compiler()


@pytest.mark.parametrize("made", ["a file", "a folder that is none"])
def test_a_folder_that_cannot_be_written_to_is_named_with_the_variable(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    place.write_text("")
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(place if made == "a file" else place / "below"))
    with pytest.raises(BuildError, match=r"cannot be kept in .* set OCTAVO_KERNEL_CACHE"):
        library_path("portable", "ops")


def test_a_library_that_cannot_be_loaded_any_more_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library_path("portable", "ops")
    path.unlink()  # and not cut short, as this process has it in its memory
    path.write_bytes(b"")
    with pytest.raises(BuildError, match=r"cannot be loaded .* delete that file"):
        open_library("portable", "ops")


def features(without: str = "") -> str:
    """A CPU's that has all that a level needs, but for the words in `without`."""
    return "flags : " + " ".join(word for word in build.AVX512 if word not in without.split())


def test_without_a_compiler_the_best_library_for_every_cpu_is_used_that_this_one_can_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    folder.mkdir(parents=True)
    for level in build.BASELINES:
        build.baseline_path(level, "ops").write_bytes(b"")
    for cpu, expected in (
        (features(), "avx512"), (features("avx512_bf16"), "avx2"), (features("fma"), "portable"), ("", "portable"),
    ):  # fmt: skip
        monkeypatch.setattr(build, "cpu_features", lambda cpu=cpu: cpu)
        assert library_path("avx512", "ops") == build.baseline_path(expected, "ops"), cpu
    monkeypatch.setattr(build, "cpu_features", features)
    assert library_path("avx2", "ops") == build.baseline_path("avx2", "ops"), "no more than was asked for"
    assert library_path("portable", "ops") == build.baseline_path("portable", "ops")
    build.baseline_path("avx512", "ops").unlink()
    assert library_path("avx512", "ops") == build.baseline_path("avx2", "ops")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler found"):
        library_path("avx512", "step")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_built_for_every_cpu_has_the_loops_of_its_level_and_decodes_as_what_is_built_for_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LIBRARIES", ("step",))
    build.build_for_every_cpu()
    monkeypatch.setenv("PATH", "")
    runs = [level for level, (_, needs) in build.BASELINES.items() if set(build.cpu_features().split()) >= set(needs)]
    assert "portable" in runs
    for level in runs:
        library = build.load(level)
        assert Path(library._name) == build.baseline_path(level, "step")
        assert library.octavo_isa().decode().lower().replace("-", "").startswith(level)
