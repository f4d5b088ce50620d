"""Several models: a team's default and its allowed ones, wherever a model can be chosen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import AsyncClient, Client

from chatapp.chat import present, services
from chatapp.chat.models import Conversation, State
from chatapp.errors import NotFound
from chatapp.tenants.access import Access, access_for_key, access_for_user
from chatapp.tenants.models import Tenant
from engine.protocol import served_models
from ops import engines
from ops.run import environment
from tests.chat.conftest import ScriptedWorker, Team

HELLO = [{"role": "user", "content": "Hello"}]
NAMES = ("small", "large", "vision")


@pytest.fixture(autouse=True)
def several(settings: Any) -> None:
    settings.OCTAVO_MODEL_NAMES, settings.OCTAVO_MODEL_NAME = NAMES, NAMES[0]


def again(team: Team, **fields: Any) -> Access:
    """The member's Access after an operator has changed the team."""
    Tenant.objects.filter(pk=team.tenant.pk).update(**fields)
    assert team.member.user is not None
    return access_for_user(team.member.user, team.tenant.slug)


# --- which they are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "allowed", "models", "model"),
    [
        ("", [], ["small", "large", "vision"], "small"),
        ("large", [], ["small", "large", "vision"], "large"),
        ("", ["vision"], ["vision"], "vision"),
        ("large", ["vision"], ["large", "vision"], "large"),
        ("gone", ["vision", "gone"], ["vision"], "vision"),
        ("gone", ["gone"], [], ""),
    ],
)
def test_a_team_has_those_of_its_models_that_are_served(
    default: str, allowed: list[str], models: list[str], model: str
) -> None:
    tenant = Tenant(default_model=default, allowed_models=allowed)
    assert (tenant.models, tenant.model) == (models, model)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("small=/a,large=/b", {"small": "/a", "large": "/b"}),
        (" small = /a b , large=/x=y ", {"small": "/a b", "large": "/x=y"}),
        ("/models/Smol-135M/,b.gguf", {"smol-135m": "/models/Smol-135M/", "b": "b.gguf"}),
    ],
)
def test_a_list_of_models_is_names_and_paths(text: str, models: dict[str, str]) -> None:
    assert served_models(text) == models
    assert list(served_models(text)) == list(models)


@pytest.mark.parametrize(
    ("text", "word"),
    [("a=/x,a=/y", "two"), ("a=/x,", "no model"), ("a=", "no model"), ("A=/x", "'A'"), ("default=/x", "'default'"),
     ("=/x", "''"), ("a b=/x", "'a b'"), ("../x=/y", "'../x'")],
)  # fmt: skip
def test_a_list_of_models_that_means_nothing_says_why(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        served_models(text)


# --- choosing -----------------------------------------------------------------------------------------------------


def test_a_stateless_call_chooses_among_the_teams_models(team: Team, server: redis.Redis) -> None:
    Tenant.objects.filter(pk=team.tenant.pk).update(default_model="large", allowed_models=["large", "vision"])
    key = access_for_key(team.secret)
    for wanted, got in ((None, "large"), ("default", "large"), ("", "large"), ("vision", "vision")):
        assert services.complete(access=key, messages=HELLO, model=wanted).model == got
    served = [ScriptedWorker(server, name).take().id for name in ("large", "vision")]
    assert len(set(served)) == 2, "each model has a queue of its own"
    words = set()
    for wanted in ("small", "gpt-9"):
        with pytest.raises(NotFound) as refused:
            services.complete(access=key, messages=HELLO, model=wanted)
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
        words.add(refused.value.message.replace(wanted, "X"))
    assert len(words) == 1, "what is not allowed does not exist, word for word"


def test_a_conversation_keeps_the_model_that_was_chosen_last(team: Team, server: redis.Redis, record: Any) -> None:
    def ask(wanted: str | None, answers: str, conversation: object = None) -> Any:
        generation = services.ask(access=team.member, text="Hi", conversation_id=conversation, model=wanted)
        assert generation.model == answers
        ScriptedWorker(server, answers).answer("Hello.")
        record()
        return generation.conversation_id

    first = ask(None, "small")
    assert Conversation.objects.get(pk=first).model == "", "it follows the team's default until somebody chooses"
    ask("large", "large", first)
    ask(None, "large", first)
    assert present.conversation(team.member, first)["model"] == "large"
    assert present.conversation(team.member, first)["messages"][1]["model"] == "small"
    second = ask("vision", "vision")
    ask(None, "vision", second)
    ask("default", "small", second)


def test_a_conversation_whose_model_was_taken_away_goes_on_with_the_default(
    team: Team, server: redis.Redis, record: Any, settings: Any
) -> None:
    generation = services.ask(access=team.member, text="Hi", model="large")
    ScriptedWorker(server, "large").answer("Hello.")
    record()
    member = again(team, allowed_models=["small", "vision"])
    with pytest.raises(NotFound, match="no model 'large'"):
        services.ask(access=member, text="Hi", conversation_id=generation.conversation_id, model="large")
    follow = services.ask(access=member, text="Hi", conversation_id=generation.conversation_id)
    assert follow.model == "small"
    assert Conversation.objects.get(pk=generation.conversation_id).model == "large", "it may be given back"
    settings.OCTAVO_MODEL_NAMES = ("other",)
    with pytest.raises(NotFound, match="any more"):
        services.ask(access=member, text="Hi")


def test_a_refused_model_leaves_nothing_behind(team: Team) -> None:
    with pytest.raises(NotFound):
        services.ask(access=team.member, text="Hi", model="gpt-9")
    assert not Conversation.objects.exists()


def test_the_same_idempotency_key_with_another_model_is_another_request(team: Team) -> None:
    from chatapp.errors import IdempotencyMismatch

    first = services.ask(access=team.member, text="Hi", model="large", idempotency_key="k")
    assert services.ask(access=team.member, text="Hi", model="large", idempotency_key="k") == first
    with pytest.raises(IdempotencyMismatch):
        services.ask(access=team.member, text="Hi", model="small", idempotency_key="k")
    assert first.state in (State.ACCEPTED, State.QUEUED)


# --- what is told -------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
async def test_the_list_of_models_is_the_teams_own(team: Team, server: redis.Redis) -> None:
    from asgiref.sync import sync_to_async

    change = Tenant.objects.filter(pk=team.tenant.pk).update
    await sync_to_async(change)(default_model="large", allowed_models=["large", "vision"])
    ScriptedWorker(server, "large").beat()
    client, key = AsyncClient(), {"Authorization": f"Bearer {team.secret}"}
    listed = (await client.get("/v1/models", headers=key)).json()
    assert listed.get("object") == "list", listed
    # A team's assistants stand among them under names of their own (tests/prompts).
    plain = [model for model in listed["data"] if not model["id"].startswith("assistant:")]
    assert [(model["id"], model["object"], model["available"]) for model in plain] == [
        ("large", "model", True),
        ("vision", "model", False),
    ]
    assert plain[0]["max_model_len"] == 99
    assert (await client.get("/v1/models/default", headers=key)).json()["id"] == "large"
    assert (await client.get("/v1/models/vision", headers=key)).json()["id"] == "vision"
    for name in ("small", "gpt-9"):
        reply = await client.get(f"/v1/models/{name}", headers=key)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.django_db
def test_readiness_names_the_model_that_has_no_worker(client: Client, server: redis.Redis) -> None:
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["missing"]) == (503, ["worker"])
    ScriptedWorker(server, "elsewhere").beat()
    assert client.get("/readyz").status_code == 503, "a worker of a model that is not ours serves nobody here"
    for number, (name, missing) in enumerate(
        [("large", ["worker:small", "worker:vision"]), ("small", ["worker:vision"]), ("vision", [])]
    ):
        worker = ScriptedWorker(server, name)
        worker.name = f"worker-{number}"
        worker.beat()
        reply = client.get("/readyz")
        assert (reply.status_code, reply.json()["missing"]) == (200, missing)
        assert reply.json()["status"] == ("degraded" if missing else "ok")


# --- the machine --------------------------------------------------------------------------------------------------


def test_each_model_gets_an_engine_of_its_own_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from supervisor.options import ServerOptions

    monkeypatch.setattr(engines.os, "sched_getaffinity", lambda pid: {*range(8)})
    env = {
        "OCTAVO_WORKER_PROMPT_STORE": str(tmp_path / "prompts"),
        "OCTAVO_ENGINE_MY_LARGE_2": "--device cuda:1 --name 'a b'",
    }
    served = {"small": "/models/a folder", "my-large.2": "/models/b"}
    conf = engines.configuration(tmp_path, env, served)
    for name in ("OCTAVO_PYTHON", "OCTAVO_DATA", "OCTAVO_RUN", "OCTAVO_BIND", "PORT", "USER"):
        monkeypatch.setenv(name, "root" if name == "USER" else str(tmp_path))
    monkeypatch.setenv("OCTAVO_EMBEDDED_REDIS", "true")
    (tmp_path / "logs").mkdir()
    options = ServerOptions()
    options.realize(["-c", str(conf)])
    programs = {group.name: group.process_configs[0] for group in options.process_group_configs}
    assert set(programs) == {"redis", "engine-small", "engine-my-large.2", "web", "recorder", "celery", "beat"}
    small, large = programs["engine-small"], programs["engine-my-large.2"]
    assert "--model '/models/a folder' --served-as small --threads 4" in small.command
    assert large.command.endswith("--device cuda:1 --name 'a b'")
    assert "--prompt-store" in small.command
    assert small.stdout_logfile.endswith("logs/engine-small.log")
    assert (small.startretries, small.priority) == (1000000, 10)
    assert "4 of 8 cores" in engines.about(served, env)


def test_one_engine_is_the_plain_configuration(tmp_path: Path) -> None:
    assert engines.configuration(tmp_path, {}, {}) == engines.CONF
    assert engines.about({}, {"OCTAVO_MODEL": "/models/a"}) == ""


def test_several_engines_of_one_model_divide_the_cores_and_share_its_prompt_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.os, "sched_getaffinity", lambda pid: {*range(8)})
    env = {
        "OCTAVO_ENGINES": "2",
        "OCTAVO_MODEL": "/models/Small One",
        "OCTAVO_WORKER_PROMPT_STORE": str(tmp_path / "prompts"),
        "OCTAVO_WORKER_METRICS_PORT": "9200",
        "OCTAVO_ENGINE_SMALL_ONE": "--device cuda:{n}",
    }
    text = engines.configuration(tmp_path, env, {}).read_text()
    commands = dict(re.findall(r"^\[program:(engine\S*)\]\ncommand=.* -m engine.worker (.*)$", text, re.MULTILINE))
    assert commands == {
        f"engine-small-one-{n + 1}": "--model '/models/Small One' --served-as small-one --threads 4"
        f" --metrics-port {9200 + n} --device cuda:{n}"
        for n in range(2)
    }, "and no store but that of the environment"
    assert text.count("/logs/engine-small-one-") == 2
    assert "2 engines each" in engines.about({}, env)
    assert "4 of 8 cores" in engines.about({}, env)

    both = {"a": "/a", "b": "/b"}
    text = engines.configuration(tmp_path, env, both).read_text()
    assert re.findall(r"program:engine-(\S+)\]", text) == ["a-1", "a-2", "b-1", "b-2"]
    assert re.findall(r"--threads (\d)", text) == ["2"] * 4
    assert re.findall(r"--metrics-port (\d+)", text) == ["9200", "9201", "9202", "9203"]
    assert re.findall(r"/prompts/(\S)", text) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("count", ["0", "65", "-1", "two", "²", "٣", "9" * 5000], ids=lambda count: count[:5])
def test_a_number_of_engines_that_cannot_be_is_refused_in_words(tmp_path: Path, count: str) -> None:
    with pytest.raises(ValueError, match=f"OCTAVO_ENGINES={count} is no number of engines"):
        engines.configuration(tmp_path, {"OCTAVO_ENGINES": count, "OCTAVO_MODEL": "m"}, {})


def test_options_of_an_engine_that_cannot_be_read_are_refused_with_their_variable(tmp_path: Path) -> None:
    env = {"OCTAVO_ENGINES": "2", "OCTAVO_MODEL": "m", "OCTAVO_ENGINE_M": "--name 'a b"}
    with pytest.raises(ValueError, match="OCTAVO_ENGINE_M=--name 'a b cannot be read as options: No closing quotation"):
        engines.configuration(tmp_path, env, {})


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_only_model_is_served_under_the_name_that_the_web_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for name, value in {
        "OCTAVO_MODEL": str(tmp_path / "model"), "OCTAVO_MODEL_NAME": "acme-chat", "OCTAVO_ENGINES": count
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OCTAVO_WORKER_SERVED_AS", raising=False)
    env = environment(tmp_path, tmp_path, "127.0.0.1", 8123, {})
    assert env["OCTAVO_WORKER_SERVED_AS"] == "acme-chat"
    commands = re.findall(r"-m engine.worker(.*)$", engines.configuration(tmp_path, env, {}).read_text(), re.MULTILINE)
    assert len(commands) == int(count)
    assert all("--served-as acme-chat" in command or not command for command in commands), commands
