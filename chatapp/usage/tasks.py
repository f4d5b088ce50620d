"""Celery's part of usage: beat calls for roll-ups every minute, and for reconciliation every night."""

from __future__ import annotations

from celery import shared_task

from chatapp.usage import rollup
from chatapp.usage.budgets import Meters
from chatapp.usage.reconcile import reconcile


@shared_task
def roll_up() -> None:
    rollup.roll_up()


@shared_task
def reconcile_budgets() -> None:
    reconcile(Meters())
