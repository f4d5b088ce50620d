"""Service per tenant: who has received how much, and so whose turn it is.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", arXiv 2401.00588): a tenant's counter
grows by the cost of the tokens it is served, divided by its weight; the tenant with the least counter goes first. A
tenant that comes back after a pause is lifted to the least counter of those that are active, so a pause earns no
credit. Between two tenants that always have work waiting, the difference stays below what one step can serve.

It knows tenants and numbers only: neither sequences nor blocks nor time.
"""

from __future__ import annotations

PROMPT_COST = 1.0
"""Charged per prompt token that is computed; tokens found in the prefix cache cost nothing, recomputing neither."""
OUTPUT_COST = 2.0
"""Charged per output token: it takes a step, which many prompt tokens share (the ratio is the paper's)."""


class Fairness:
    """Counters of the active tenants (those with a live sequence) and of idle ones that are ahead of the floor."""

    def __init__(self) -> None:
        self._service: dict[str, float] = {}
        self._weight: dict[str, float] = {}  # active tenants only
        self._floor = 0.0  # the highest least counter seen; no active counter is below it

    def enter(self, tenant: str, weight: float = 1.0) -> None:
        """`tenant` has work from now on. Called again while it is active: only its weight changes."""
        if not weight > 0:
            raise ValueError(f"the weight of tenant {tenant!r} must be above 0, not {weight}")
        if tenant not in self._weight:
            self._raise_floor()
            self._service[tenant] = max(self._service.get(tenant, 0.0), self._floor)
        self._weight[tenant] = weight

    def leave(self, tenant: str) -> None:
        """`tenant` has no work left. Its counter is remembered for as long as it is ahead of the floor."""
        self._raise_floor()
        del self._weight[tenant]
        for idle in [t for t, service in self._service.items() if t not in self._weight and service <= self._floor]:
            del self._service[idle]

    def charge(self, tenant: str, cost: float) -> None:
        self._service[tenant] += cost / self._weight[tenant]

    def service(self, tenant: str) -> float:
        """Weighted service of an active tenant; comparable between tenants."""
        return self._service[tenant]

    def of_active(self) -> dict[str, float]:
        """Weighted service of every active tenant. May be asked in any thread."""
        return {tenant: self._service.get(tenant, self._floor) for tenant in list(self._weight)}

    def _raise_floor(self) -> None:
        if self._weight:
            self._floor = max(self._floor, min(self._service[tenant] for tenant in self._weight))
