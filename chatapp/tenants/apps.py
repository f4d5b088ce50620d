from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_delete, post_migrate


class TenantsConfig(AppConfig):
    name = "chatapp.tenants"
    label = "tenants"

    def ready(self) -> None:
        from chatapp.postgresql.policies import check_role, make_policies
        from chatapp.tenants import helped
        from chatapp.tenants.sign_in_services import forget_links

        post_migrate.connect(make_policies, sender=self, dispatch_uid="row-security")
        post_delete.connect(forget_links, sender="tenants.SignIn", dispatch_uid="sign-in-links")
        helped.connect()
        register(check_role, Tags.database)
