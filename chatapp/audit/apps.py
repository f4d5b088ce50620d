from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "chatapp.audit"
    label = "audit"
