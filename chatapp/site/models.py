"""What the whole site has once: its name, how it sends mail, and when it was set up."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _l

DEFAULT_NAME = "Octavo"


class SiteSettings(models.Model):
    """One row. It is there from the set-up on, or from the first change; until then its defaults hold."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    name = models.CharField(max_length=60, default=DEFAULT_NAME, help_text=_l("Stands in titles and mails."))
    # Sealed (chatapp.sealing): there is a password in it.
    sealed_smtp_url = models.TextField(blank=True, editable=False)
    mail_from = models.EmailField("sender", blank=True, help_text=_l("The address that mails come from."))
    set_up_at = models.DateTimeField(null=True, blank=True, editable=False)
    # Somebody has said that the data is saved elsewhere; nothing here can know that.
    backups_seen_at = models.DateTimeField(null=True, blank=True, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = "site settings"
        verbose_name_plural = "site settings"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="site_settings_once")]

    def __str__(self) -> str:
        return self.name
