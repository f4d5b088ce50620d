from django.apps import AppConfig


class OperatorsConfig(AppConfig):
    name = "chatapp.operators"
    label = "operators"
