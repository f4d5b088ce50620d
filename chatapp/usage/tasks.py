"""Celery's part of usage: beat calls it every minute."""

from __future__ import annotations

from celery import shared_task

from chatapp.usage import rollup


@shared_task
def roll_up() -> None:
    rollup.roll_up()
