from django.apps import AppConfig


class SiteConfig(AppConfig):
    name = "chatapp.site"
    label = "site"
    verbose_name = "This site"
