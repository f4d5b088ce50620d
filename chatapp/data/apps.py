from django.apps import AppConfig


class DataConfig(AppConfig):
    name = "chatapp.data"
    label = "data"
