from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "chatapp.audit"
    label = "audit"

    def ready(self) -> None:
        from chatapp.audit import security

        security.connect()
