from django.apps import AppConfig


class StreamingConfig(AppConfig):
    name = "chatapp.streaming"
    label = "streaming"
