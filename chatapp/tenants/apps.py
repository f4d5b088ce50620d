from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "chatapp.tenants"
    label = "tenants"
