"""Celery's part: messages carry ids at most, never text."""

from __future__ import annotations

from celery import shared_task

from chatapp.chat import greeting, reaper, titles


@shared_task
def reap() -> None:
    reaper.reap()


@shared_task
def greet() -> None:
    greeting.greet_workers()


@shared_task
def write_title(conversation_id: str, turn: int = 0) -> None:
    titles.write(conversation_id, turn)
