"""Who sees which tenants, everywhere in the admin.

Superusers and who has ``streaming.all_tenants`` see all. Everybody else sees the rows of the tenants
that they are a member of (``TenantMember``), and nothing that belongs to no tenant. Every model admin
is an ``OfTenant`` or an ``OfFleet``; the admin site makes an ``OfFleet`` of whatever is neither, and
looks at the row that an address names before its page is asked (``gateway_project.site``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import ForeignKey, Model, QuerySet
from django.http import HttpRequest

from streaming.admin.lookups import OfferedLookups
from streaming.models import Tenant, TenantMember

ALL_TENANTS = "streaming.all_tenants"

Row = TypeVar("Row", bound=Model)
View = TypeVar("View", bound=Callable[..., Any])


def tenants_of(user: Any) -> frozenset[int] | None:
    """The ids of the tenants that somebody sees; None: all there are.

    Remembered on ``user``, as Django remembers permissions: who keeps one for longer than a request
    loads it again.
    """
    if user.has_perm(ALL_TENANTS):
        return None
    if not user.is_authenticated:
        return frozenset()
    remembered: frozenset[int] | None = getattr(user, "_member_of", None)
    if remembered is None:
        rows = TenantMember.objects.filter(user_id=user.pk).values_list("tenant_id", flat=True)
        remembered = user._member_of = frozenset(rows)
    return remembered


def is_limited(user: Any) -> bool:
    """Whether there may be tenants that somebody does not see."""
    return tenants_of(user) is not None


def may_see(user: Any, tenant_id: int | None) -> bool:
    """Whether somebody sees this tenant; None, which is nobody's or everybody's, takes all of them."""
    seen = tenants_of(user)
    return seen is None or tenant_id in seen


def visible(user: Any, queryset: QuerySet[Row], path: str = "tenant_id") -> QuerySet[Row]:
    """The rows of tenants that somebody sees; ``path`` leads from a row to the id of its tenant."""
    seen = tenants_of(user)
    return queryset if seen is None else queryset.filter(**{f"{path}__in": seen})


def limit_choices(form: forms.BaseForm, user: Any) -> None:
    """Let a form that is no model admin's offer, and take, only tenants that somebody sees.

    Leaving the tenant empty, which stands for all of them, is then no choice either.
    """
    if not is_limited(user):
        return
    for field in form.fields.values():
        if isinstance(field, forms.ModelChoiceField) and field.queryset is not None:
            of_tenants = field.queryset.model is Tenant
            field.queryset = (
                visible(user, field.queryset, "pk") if of_tenants else field.queryset.none()
            )
            field.required = field.required or of_tenants
            # The widget got its choices by the former queryset.
            field.widget.choices = field.choices


def scopes_itself(view: View) -> View:
    """Say of a page that belongs to no model that it shows only tenants that its reader sees."""
    view.scopes_itself = True  # type: ignore[attr-defined]
    return view


class LimitedChoices(admin.options.BaseModelAdmin):
    """Foreign keys can be set to rows that somebody sees, and to no others; for inlines, too."""

    def get_field_queryset(
        self, db: Any, db_field: Any, request: HttpRequest
    ) -> QuerySet[Any] | None:
        if not is_limited(request.user):
            return super().get_field_queryset(db, db_field, request)
        related = self.admin_site._registry.get(db_field.remote_field.model)
        if related is None:  # nothing says whose its rows are
            return db_field.remote_field.model._default_manager.none()
        return related.get_queryset(request)

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.remote_field.model is Tenant and is_limited(request.user):
            kwargs["required"] = True  # empty stands for all tenants
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


class Scoped(LimitedChoices, OfferedLookups):
    """Either of the two below."""


class OfTenant(Scoped):
    """A table whose rows belong to tenants. ``tenant_path`` leads from a row to its tenant's id.

    Rows without a tenant stand for all of them: they are shown to who sees all.
    """

    tenant_path: ClassVar[str] = "tenant_id"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return visible(request.user, super().get_queryset(request), self.tenant_path)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        obj = super().save_form(request, form, change)
        if not self.may_see_row(request, obj):  # the form's choices should have refused it
            raise PermissionDenied
        return obj

    def may_see_row(self, request: HttpRequest, row: Any) -> bool:
        """Whether this row, stored or not yet, is of a tenant that the reader sees."""
        if not is_limited(request.user):
            return True
        for step in self.tenant_path.split("__"):
            row = getattr(row, step)
        return may_see(request.user, row)


class OfSession(OfTenant):
    """A very large table of sessions' rows.

    Who does not see all of them finds a session's rows by its id: to list the newest of one small
    tenant would read the rows of all.
    """

    tenant_path = "session__tenant_id"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip() and is_limited(request.user):
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)


class OfFleet(Scoped):
    """A table that belongs to no tenant: only who sees all of them sees it."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows.none() if is_limited(request.user) else rows

    def has_module_permission(self, request: HttpRequest) -> bool:
        return not is_limited(request.user) and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_limited(request.user) and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_limited(request.user) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_limited(request.user) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not is_limited(request.user) and super().has_delete_permission(request, obj)
