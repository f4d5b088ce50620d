"""`manage.py recorder`: the process that writes ended generations to the database."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand

from chatapp.chat.recorder import Recorder
from chatapp.metrics import figures
from engine import tracing


class Command(BaseCommand):
    help = "Write ended answers to the database until told to stop."

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = False
        tracing.begin("recorder")

        def stop(number: int, frame: object) -> None:
            nonlocal stopped
            stopped = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        figures.this_is("recorder")
        Recorder(lambda: stopped).run()
