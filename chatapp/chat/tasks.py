"""Celery's part: messages carry ids at most, never text."""

from __future__ import annotations

from celery import shared_task

from chatapp.chat import greeting, reaper


@shared_task
def reap() -> None:
    reaper.reap()


@shared_task
def greet() -> None:
    greeting.greet_workers()
