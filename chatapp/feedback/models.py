"""What people say of answers: thumbs, reasons, and the question and the answer where they want these to be read."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatapp.chat.models import Message
from chatapp.ids import new_id
from chatapp.owned import TenantOwned
from chatapp.prompts.models import PromptVersion, SystemPrompt
from chatapp.tenants.models import Tenant

LONGEST_COMMENT = 2_000


class Rating(models.TextChoices):
    UP = "up", _("Good")
    DOWN = "down", _("Bad")


class Reason(models.TextChoices):
    """Those of UP, then those of DOWN."""

    CORRECT = "correct", _("Correct")
    CLEAR = "clear", _("Clear")
    COMPLETE = "complete", _("Complete")
    WRONG = "wrong", _("Not correct")
    UNHELPFUL = "unhelpful", _("Not what was asked")
    INCOMPLETE = "incomplete", _("Incomplete or cut")
    STYLE = "style", _("Wrong tone or language")
    UNSAFE = "unsafe", _("Unsafe or offensive")
    SLOW = "slow", _("Too slow")


OF_RATING: dict[str, tuple[str, ...]] = {
    Rating.UP: (Reason.CORRECT, Reason.CLEAR, Reason.COMPLETE),
    Rating.DOWN: (
        Reason.WRONG, Reason.UNHELPFUL, Reason.INCOMPLETE, Reason.STYLE, Reason.UNSAFE, Reason.SLOW,
    ),
}  # fmt: skip


class Feedback(TenantOwned):
    """One per answer and person. `question` and `answer` are copies as they were when the reader said that they may be
    read, else empty: chats are private. With the conversation all text goes, and the rating stays as a figure."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="feedback")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="feedback"
    )
    message = models.ForeignKey(Message, null=True, blank=True, on_delete=models.SET_NULL, related_name="feedback")
    rating = models.CharField(max_length=4, choices=Rating.choices)
    reasons = models.JSONField(default=list, blank=True)
    comment = models.TextField(blank=True)
    included = models.BooleanField(default=False)
    question = models.TextField(blank=True)
    answer = models.TextField(blank=True)
    model = models.CharField(max_length=120, blank=True)
    assistant = models.ForeignKey(SystemPrompt, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    version = models.ForeignKey(PromptVersion, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["tenant", "-created_at", "-id"], name="feedback_list")]
        constraints = [models.UniqueConstraint(fields=["message", "user"], name="feedback_one_each")]

    def __str__(self) -> str:
        return f"feedback {self.pk}"
