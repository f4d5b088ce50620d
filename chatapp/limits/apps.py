from django.apps import AppConfig


class LimitsConfig(AppConfig):
    name = "chatapp.limits"
    label = "limits"
