"""Rows for the generations of earlier versions. The first round of the roll-up adds them up."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.apps.registry import Apps
from django.db import migrations

BATCH = 1000
UNFINISHED = ("accepted", "queued")


def us(timing: dict[str, Any], name: str) -> int:
    return max(0, round(float(timing.get(name) or 0) * 1_000_000))


def backfill(apps: Apps, schema_editor: Any) -> None:
    row_model = apps.get_model("usage", "UsageRow")
    ended = (
        apps.get_model("chat", "Generation")
        .objects.exclude(state__in=UNFINISHED)
        .select_related("prompt_version__prompt")
    )
    users = dict(apps.get_model("accounts", "User").objects.values_list("pk", "email"))
    keys = dict(apps.get_model("tenants", "ApiKey").objects.values_list("pk", "name"))

    def row(generation: Any) -> Any:
        who, _, key = generation.principal.partition(":")
        names = keys if who == "key" else users
        try:
            name = names.get(uuid.UUID(key), "")
        except ValueError:
            name = ""
        timing, version = generation.timing or {}, generation.prompt_version
        queue, prefill = us(timing, "queue_s"), us(timing, "prefill_s")
        end = generation.ended_at or generation.created_at
        return row_model(
            generation_id=generation.pk,
            tenant_id=generation.tenant_id,
            at=generation.created_at,
            ended_at=end,
            kind="chat" if who == "user" and generation.conversation_id else "api",
            principal=generation.principal,
            principal_name=name[:254],
            assistant_id=str(version.prompt_id) if version else "",
            assistant_name=version.prompt.name if version else "",
            prompt_version_id=str(version.pk) if version else "",
            model=generation.model,
            state=generation.state,
            finish_reason=generation.finish_reason,
            error_code=generation.error_code,
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            output_tokens=generation.completion_tokens,
            queue_us=queue,
            prefill_us=prefill,
            decode_us=us(timing, "decode_s"),
            first_token_us=queue + prefill if timing and generation.completion_tokens else None,
            total_us=max(0, (end - generation.created_at) // timedelta(microseconds=1)),
        )

    batch: list[Any] = []
    for generation in ended.defer("request", "error_message", "prompt_version__text").iterator(chunk_size=BATCH):
        batch.append(row(generation))
        if len(batch) == BATCH:
            row_model.objects.bulk_create(batch, ignore_conflicts=True)
            batch = []
    row_model.objects.bulk_create(batch, ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [
        ("usage", "0001_rows_and_roll_ups"),
        ("chat", "0001_initial"),
        ("prompts", "0001_initial"),
        ("accounts", "0001_initial"),
    ]

    operations = [migrations.RunPython(backfill, migrations.RunPython.noop)]
