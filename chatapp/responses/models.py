"""Responses that are kept: what was asked, and what came of it. How one ended stands in its generation."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from chatapp.chat.models import Generation
from chatapp.owned import TenantOwned
from chatapp.tenants.models import Tenant

PREFIX = "resp_"


class StoredResponse(TenantOwned):
    """Written in the transaction that accepts its generation, finished in the one that records the end.

    `previous_id` and `ancestors` name rows that may have been deleted since: who goes on from here is told so.
    """

    generation = models.OneToOneField(
        Generation, primary_key=True, on_delete=models.CASCADE, related_name="stored_response"
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="responses")
    # The response that it goes on from, and all before that one, oldest first.
    previous_id = models.UUIDField(null=True, blank=True)
    ancestors = models.JSONField(default=list, blank=True)
    background = models.BooleanField(default=False)
    # What the caller asked for, under the names that a response tells it by.
    settings = models.JSONField(default=dict, blank=True)
    input = models.JSONField(default=list, blank=True)
    output = models.JSONField(default=list, blank=True)
    # In what portions the output came: a stream that is resumed after the log has expired has the same numbers.
    pieces = models.JSONField(default=list, blank=True)
    # Of input and output, in characters of JSON: how much a conversation of many holds.
    size = models.PositiveIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        indexes = [models.Index(fields=["tenant", "created_at"], name="response_age")]

    def __str__(self) -> str:
        return self.public_id

    @property
    def public_id(self) -> str:
        return f"{PREFIX}{self.generation_id.hex}"
