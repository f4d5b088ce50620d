"""Conversations, their tree of messages, and generations.

A Generation is one run of the engine; its id is the id on the wire. It ends in exactly one terminal state, and the
database lets a conversation have one unfinished generation at a time.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from chatapp.ids import new_id
from chatapp.limits.rates import Standing
from chatapp.owned import TenantOwned
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.models import ApiKey, Tenant, new_salt

LONGEST_TITLE = 120
LONGEST_TAG = 40


class TitledBy(models.TextChoices):
    """Who gave a conversation its title: its own first words, until the model or its owner says better."""

    WORDS = "words", "Its first words"
    MODEL = "model", "The model"
    PERSON = "person", "Its owner"


class Conversation(TenantOwned):
    """A user's chat in a tenant. Its salt keeps its KV blocks from everyone else, colleagues included."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="conversations")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="conversations"
    )
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE, related_name="conversations")
    # Who was chosen for it; None: nobody was, so the team's default one answers.
    assistant = models.ForeignKey(SystemPrompt, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    title = models.CharField(max_length=LONGEST_TITLE)
    titled_by = models.CharField(max_length=10, choices=TitledBy.choices, default=TitledBy.WORDS)
    # How it is answered where a question does not say otherwise: temperature and the like (chatapp.chat.params).
    params = models.JSONField(default=dict, blank=True)
    # The one chosen last; empty, or not the team's any more: the team's default answers.
    model = models.CharField(max_length=120, blank=True)
    salt = models.CharField(max_length=64, default=new_salt, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True, blank=True)
    # Out of the list, and found by those who ask for what is archived.
    archived_at = models.DateTimeField(null=True, blank=True)
    # Kept although it is old, where the team's retention says so.
    starred_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "user", "-updated_at"], name="conversation_list")]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, key__isnull=True) | Q(user__isnull=True, key__isnull=False),
                name="conversation_has_one_owner",
            )
        ]

    def __str__(self) -> str:
        return f"conversation {self.pk}"


class Tag(TenantOwned):
    """A word that its owner has put on a conversation."""

    tenant_path = "conversation__tenant"

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="tags")
    name = models.CharField(max_length=LONGEST_TAG)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["conversation", "name"], name="tag_once")]

    def __str__(self) -> str:
        return f"tag {self.pk}"


class MessageRole(models.TextChoices):
    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"


class MessageStatus(models.TextChoices):
    RUNNING = "running", "Being answered"
    DONE = "done", "Done"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"


class Message(TenantOwned):
    tenant_path = "conversation__tenant"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="messages")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")
    role = models.CharField(max_length=10, choices=MessageRole.choices)
    text = models.TextField(blank=True)
    status = models.CharField(max_length=10, choices=MessageStatus.choices, default=MessageStatus.DONE)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return f"{self.role} message {self.pk}"


class State(models.TextChoices):
    """accepted: in the database; queued: Redis has it too; the others are ends."""

    ACCEPTED = "accepted", "Accepted"
    QUEUED = "queued", "Queued"
    FINISHED = "finished", "Finished"
    REFUSED = "refused", "Refused"
    CANCELLED = "cancelled", "Cancelled"
    TIMEOUT = "timeout", "Timed out"
    INTERRUPTED = "interrupted", "Interrupted"
    FAILED = "failed", "Failed"


UNFINISHED = (State.ACCEPTED, State.QUEUED)


class Generation(TenantOwned):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="generations")
    principal = models.CharField(max_length=60)
    conversation = models.ForeignKey(
        Conversation, null=True, blank=True, on_delete=models.CASCADE, related_name="generations"
    )
    message = models.OneToOneField(Message, null=True, blank=True, on_delete=models.CASCADE, related_name="generation")
    prompt_version = models.ForeignKey(PromptVersion, null=True, blank=True, on_delete=models.SET_NULL)
    model = models.CharField(max_length=120)
    state = models.CharField(max_length=12, choices=State.choices, default=State.ACCEPTED)
    # The encoded wire request, until the generation has ended: the reaper may have to queue it.
    request = models.BinaryField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  unique, so none is NULL
    digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deadline = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    # Those of the cached ones that others of the team share: its published instructions.
    shared_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    timing = models.JSONField(default=dict, blank=True)
    finish_reason = models.CharField(max_length=20, blank=True)
    error_code = models.CharField(max_length=60, blank=True)
    error_message = models.TextField(blank=True)
    error_param = models.CharField(max_length=60, blank=True)
    # The number of the last delta: what a reader that resumes from the database has seen.
    last_seq = models.IntegerField(default=0)
    # How the asker's rates stood when it was accepted (chatapp.limits); not stored.
    standings: tuple[Standing, ...] | None = None
    # An earlier request with the same idempotency key began it; not stored.
    repeated = False
    # The messages that were written with it, and go with it if it is undone; not stored.
    added: tuple[Message, ...] = ()

    class Meta:
        indexes = [
            models.Index(fields=["created_at"], name="generation_unfinished", condition=Q(state__in=UNFINISHED)),
            models.Index(fields=["tenant", "created_at"], name="generation_usage"),
            models.Index(fields=["prompt_version", "created_at"], name="generation_of_version"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "principal", "idempotency_key"],
                name="generation_idempotent",
                condition=Q(idempotency_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["conversation"],
                name="generation_one_at_a_time",
                condition=Q(state__in=UNFINISHED),
            ),
        ]

    def __str__(self) -> str:
        return f"generation {self.pk}, {self.state}"

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED
