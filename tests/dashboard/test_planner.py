"""The operators' KV planner: the figures of the command, by address, and words for what cannot be planned."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.test import Client

from chatapp.accounts.models import User
from chatapp.dashboard import planner_forms
from chatapp.streaming.lengths import running_lengths
from engine import occupancy_wire, plan, protocol
from engine.occupancy_wire import Figures, Head, Row
from engine.protocol import WorkerDetails
from tests.engine.tiny import make_tiny

pytestmark = pytest.mark.django_db
SMOLLM2 = "-smollm2-135m"


@pytest.fixture
def server(redis_url: str, settings: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_url, protocol=2)
    client.flushall()
    client.function_load(protocol.LIBRARY_SOURCE.read_text(), replace=True)
    settings.REDIS_URL = redis_url
    yield client
    client.close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, settings: Any, request: pytest.FixtureRequest) -> None:
    """No model is served and no worker is asked for, unless a test says so."""
    settings.OCTAVO_MODEL = settings.OCTAVO_MODELS = ""
    if "server" not in request.fixturenames:
        monkeypatch.setattr(planner_forms.workers, "live", list)


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("operator@example.org", "a password"))
    return client


def ask(admin: Client, path: str = "/admin/planner/", **choices: object) -> str:
    reply = admin.get(f"{path}?{urlencode({'model': SMOLLM2, **choices})}")
    assert reply.status_code == 200
    return reply.content.decode()


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def rows(html: str, table: str) -> list[list[str]]:
    """The cells of a table's body."""
    body = re.search(rf'<table class="{table}">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    assert body is not None
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", body[1], re.DOTALL)
    return [[words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in found]


def test_four_sequences_stand_in_2_4_2_and_5_blocks_of_16_with_0_14_15_and_0_slots_unused(admin: Client) -> None:
    html = ask(admin, lengths="fixed", tokens="32, 50, 17, 80", block=16, shared=0)
    assert [[row[0], row[1], row[3]] for row in rows(html, "sequences")] == [
        ["32", "2", "0"], ["50", "4", "14"], ["17", "2", "15"], ["80", "5", "0"],
    ]  # fmt: skip
    assert html.count('<rect class="own"') == 2 + 4 + 2 + 5
    assert html.count('<rect class="rest"') == 2, "two last blocks are part-filled"
    assert ["16 chosen", "13.9 %", "7.3", "3.3"] in [row[:4] for row in rows(html, "by-size")]


def test_the_page_says_what_the_command_says(
    admin: Client, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a served model, with a prefix, for the same lengths."""
    folder = make_tiny(tmp_path / "tiny", num_hidden_layers=3)
    (tmp_path / "lengths").write_text("100 3\n17\n250\n")
    settings.OCTAVO_MODEL, settings.OCTAVO_MODEL_NAME = str(folder), "tiny"
    common = ["--model", str(folder), "--memory", "3MiB", "--block-size", "24", "--prefix", "100"]
    assert plan.main([*common, "--lengths", str(tmp_path / "lengths")]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    html = ask(
        admin, model="tiny", memory="3MiB", block=24, shared=0, lengths="fixed", tokens="100x3, 17, 250",
    )  # fmt: skip
    for row in rows(html, "by-size"):
        cells = [row[0].removesuffix(" chosen"), row[2], row[1].replace(" %", "%"), row[3], row[4]]
        assert cells in [line[:5] for line in said], cells
    blocks = next(line[1] for line in said if line[:1] == ["blocks"])
    assert f"Blocks {blocks} " in words(html)
    sharing = ask(admin, model="tiny", memory="3MiB", block=24, shared=100)
    for length, alone, fit in rows(sharing, "by-length"):
        length = length.removesuffix(" the whole context")
        assert [length, alone, fit.replace("\u2013", "-")] in said or length not in ("512", "1,024"), length


def test_what_is_typed_is_a_model_too_and_ranks_share_its_heads(admin: Client) -> None:
    shape = {"model": "-typed", "layers": 30, "kv_heads": 3, "head_dim": 64, "context": 8192}
    assert "23,040 bytes each" in words(ask(admin, **shape))
    assert "7,680 bytes each" in words(ask(admin, **shape, ranks=3))
    assert "3 KV heads, which do not go with 2 ranks" in words(ask(admin, **shape, ranks=2))
    assert "46,080 bytes each" in words(ask(admin, **shape, kv="float32"))
    assert f"{2 * 30 * 3 * 66:,} bytes each" in words(ask(admin, **shape, kv="int8"))
    assert f"{2 * 30 * 3 * 68:,} bytes each" in words(ask(admin, **shape, kv="fp8"))


def test_a_shared_prefix_is_counted_once_and_drawn_as_shared(admin: Client) -> None:
    html = ask(admin, lengths="fixed", tokens="80", shared=40, memory=10 * 16 * 23_040)
    assert rows(html, "sequences")[0][:4] == ["80", "5", "2", "0"]
    assert (html.count('<rect class="shared"'), html.count('<rect class="own"')) == (2, 3)
    assert "Sequences 2 2 without sharing" in words(html)
    assert "nothing shared in full blocks" in words(ask(admin, lengths="fixed", tokens="80", shared=15))
    assert "Sequences 4 3 without sharing" in words(
        ask(admin, lengths="fixed", tokens="80", shared=40, memory=15 * 16 * 23_040)
    )


def test_a_long_sequence_is_drawn_by_its_two_ends(admin: Client) -> None:
    html = ask(admin, lengths="fixed", tokens="1000000", model="-typed", context=2_000_000, memory="1TiB")
    assert "62,488 between" in words(html)
    assert html.count("<rect") < 30


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"memory": "lots"}, "Memory for the KV pool 'lots' is no size"),
        ({"memory": "100KiB"}, "one of 16 tokens takes 360.0 KiB"),
        ({"memory": "9999999TiB"}, "No machine has more than 1,024 TiB"),
        ({"memory": ""}, "Memory for the KV pool This field is required"),
        ({"block": 0}, "Tokens a block Ensure this value is greater than or equal to 1"),
        ({"block": "many"}, "Tokens a block Enter a whole number"),
        ({"block": 5000}, "less than or equal to 4096"),
        ({"lengths": "fixed", "tokens": "12, twelve"}, "“twelve” is no length"),
        ({"lengths": "fixed", "tokens": "0"}, "“0” is no length"),
        ({"lengths": "fixed", "tokens": "٣٢"}, "“٣٢” is no length"),
        ({"lengths": "fixed", "tokens": "5x0"}, "“5x0” is no length"),
        ({"lengths": "fixed", "tokens": ",,"}, "Write at least one length"),
        ({"lengths": "fixed", "tokens": "9000"}, "9,000 tokens are more than the model's context of 8,192"),
        ({"lengths": "fixed", "tokens": "1," * 501}, "501 lengths are too many"),
        ({"median": 900, "high": 800}, "This cannot be below the length that half of them have"),
        ({"lengths": "running", "worker": "w9"}, "That worker is gone"),
        ({"lengths": "running"}, "Nothing runs there now"),
        ({"model": "no-such"}, "Model Select a valid choice"),
        ({"model": "-typed", "layers": ""}, "Layers This field is required"),
        ({"shared": -1}, "First tokens that all share"),
        ({"kv": "int3"}, "Keys and values in Select a valid choice"),
        ({"block": "<script>alert(1)</script>\x00"}, "Enter a whole number"),
    ],
)
def test_what_cannot_be_planned_is_said_by_its_fields_name(
    admin: Client, choices: dict[str, object], says: str
) -> None:
    for path in ("/admin/planner/", "/admin/planner/figures/"):
        html = ask(admin, path, **choices)
        assert says in words(html).replace("&#x27;", "'")
        assert "This cannot be planned yet" in html
        assert "<script>alert" not in html


def test_what_stands_in_a_field_that_is_not_asked_for_bothers_nobody(admin: Client) -> None:
    html = ask(admin, layers="x", tokens="", worker="gone", lengths="spread", kv_heads="-3")
    assert "This cannot be planned yet" not in html
    assert "Sequences" in words(html)


def test_lengths_are_written_with_commas_spaces_or_lines_and_times(admin: Client) -> None:
    html = ask(admin, lengths="fixed", tokens="100 x 3 17\n17; 5*2 40×1", shared=0)  # noqa: RUF001
    assert [row[:2] for row in rows(html, "sequences")] == [["100", "3"], ["17", "2"], ["5", "2"], ["40", "1"]]


def test_a_model_whose_files_are_elsewhere_can_still_be_typed(admin: Client, settings: Any) -> None:
    settings.OCTAVO_MODELS = "small=/nowhere/small,large=/nowhere/large"
    assert "This process cannot read the files of small; type its numbers instead" in words(ask(admin, model="small"))
    assert "This cannot be planned yet" not in ask(admin, model="-typed")


def test_without_choices_there_is_an_answer_for_the_served_model(admin: Client, tmp_path: Path, settings: Any) -> None:
    settings.OCTAVO_MODEL, settings.OCTAVO_MODEL_NAME = str(make_tiny(tmp_path / "tiny")), "tiny"
    html = admin.get("/admin/planner/").content.decode()
    assert '<option value="tiny" selected>' in html
    assert "tiny:" in words(html)


# --- what runs --------------------------------------------------------------------------------------------------------


def publish(server: redis.Redis, worker: str, number: int, base: int, rows: list[Row], gone: list[int]) -> None:
    head = Head(
        worker=worker, number=number, base=base, at_ms=1, block_size=16, blocks=0, rows=rows, gone=gone,
        figures=Figures(),
    )  # fmt: skip
    cells = occupancy_wire.compress([array("I")])
    server.xadd(protocol.occupancy_key(worker), {"head": occupancy_wire.encode_head(head), "cells": cells})


def test_lengths_are_those_of_what_a_worker_runs_now(admin: Client, server: redis.Redis) -> None:
    """A whole frame, forty changes and what is older than it; another worker that has said no whole frame."""
    for worker in ("w1", "w2"):
        details = WorkerDetails(id=worker, model="m", context=99, block_size=16, num_blocks=9, pid=1, running=2)
        server.fcall(*protocol.heartbeat(worker, details))
    publish(server, "w1", 1, 0, [Row(number=9, tokens=999)], [])
    publish(server, "w1", 2, 0, [Row(number=1, tokens=30), Row(number=2, tokens=70), Row(number=3)], [])
    for step in range(40):
        publish(server, "w1", 3 + step, 2 + step, [Row(number=1, tokens=31 + step)], [2] if step == 20 else [])
    publish(server, "w1", 43, 42, [Row(number=4, tokens=50)], [])
    publish(server, "w2", 8, 7, [Row(number=1, tokens=5)], [])
    assert running_lengths(["w1"]) == {70: 1, 50: 1}
    assert running_lengths(["w2"]) == running_lengths(["none"]) == {}
    html = ask(admin, lengths="running", worker="w1", shared=0)
    assert [row[:3] for row in rows(html, "sequences")] == [["50", "4", "0"], ["70", "5", "0"]]
    assert "what runs now on worker w1" in words(html)
    assert "what runs now on all workers" in words(ask(admin, lengths="running"))
    assert "Nothing runs there now" in words(ask(admin, lengths="running", worker="w2"))


def test_the_planner_works_while_redis_does_not(admin: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise redis.exceptions.ConnectionError

    monkeypatch.setattr(planner_forms.workers, "live", away)
    assert "This cannot be planned yet" not in ask(admin)
    assert "No worker is alive" in words(ask(admin))


# --- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/admin/planner/", "/admin/planner/figures/"])
def test_only_operators_plan_and_nothing_is_changed_by_it(client: Client, path: str) -> None:
    assert client.get(path).status_code == 302
    client.force_login(User.objects.create_user("a@b.test", "a password"))
    assert client.get(path).status_code in (302, 403)
    client.force_login(User.objects.create_superuser("op@b.test", "a password"))
    assert client.get(path).status_code == 200
    assert client.post(path).status_code == 405
