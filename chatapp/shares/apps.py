from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_delete


class SharesConfig(AppConfig):
    name = "chatapp.shares"

    def ready(self) -> None:
        from chatapp.shares.services import end_of_membership

        post_delete.connect(end_of_membership, sender="tenants.Membership", dispatch_uid="shares-of-members")
