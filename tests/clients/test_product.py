"""The clients against the whole product: a web process that is killed in the middle of an answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from octavo_client import Octavo, TextDelta

from tests.api.test_slow_clients import web
from tests.stack import ROOT, Stack, wait_for

LONG = {"temperature": 0, "max_tokens": 80, "ignore_eos": True}
EXAMPLES = Path(ROOT) / "clients" / "python" / "examples"


@pytest.mark.long
def test_answers_go_on_after_the_web_process_is_killed_and_are_what_they_would_have_been(stack: Stack) -> None:
    stack.wait_idle()
    questions = ["Tell me about the sea.", "Tell me about the moon."]
    with Octavo(stack.url, api_key=stack.key()) as octavo:
        undisturbed = [octavo.complete(question, **LONG) for question in questions]  # type: ignore[arg-type]
        streams = [octavo.stream(question, **LONG) for question in questions]  # type: ignore[arg-type]
        texts = ["", ""]
        for n, stream in enumerate(streams):
            for event in stream:
                if isinstance(event, TextDelta):
                    texts[n] += event.delta
                    break
        process = web(stack)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        for n, stream in enumerate(streams):
            texts[n] += "".join(event.delta for event in stream if isinstance(event, TextDelta))
        for n, stream in enumerate(streams):
            assert stream.answer.status == undisturbed[n].status == "incomplete"
            assert texts[n] == stream.answer.text == undisturbed[n].text
        chat = octavo.conversation(streams[0].answer.conversation_id)
        assert chat.complete("Go on.", max_tokens=8).conversation_id == streams[0].answer.conversation_id
    wait_for(lambda: web(stack).pid != process.pid)


@pytest.mark.long
def test_the_examples_run(stack: Stack) -> None:
    environment = {
        **os.environ,
        "OCTAVO_URL": stack.url,
        "OCTAVO_API_KEY": stack.key(),
        "PYTHONPATH": str(Path(ROOT) / "clients" / "python" / "src"),
    }

    def run(name: str, said: str = "", *arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        done = subprocess.run(command, env=environment, input=said, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    asked = run("ask.py", "", "Say hello.")
    assert " tokens]" in asked
    assert len(asked.splitlines()[0]) > 1
    lines = run("many.py", "Name a colour.\nName a river.\n").splitlines()
    assert {line.partition("\t")[0] for line in lines} == {"Name a colour.", "Name a river."}
    assert all(line.partition("\t")[2] for line in lines)
    assert "Go on with" in run("chat.py", "Say hello.\n")
