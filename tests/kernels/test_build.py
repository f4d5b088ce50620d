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
