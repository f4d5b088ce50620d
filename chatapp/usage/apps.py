from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "chatapp.usage"
    label = "usage"
