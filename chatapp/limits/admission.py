"""One request's way past the limits: `enter` before anything is written, `reserve` in the transaction that writes it,
`charge` behind that transaction, so that no lock of the database waits for Redis.

    admission = Admission(access, limits_of(access))
    admission.enter()
    with transaction.atomic():
        output_tokens = admission.reserve(...)
        ...
    admission.charge()

`reserve` may be called for several generations that are accepted together, and again for the same one when its
transaction is tried again. Each raises RateLimited or QuotaUsedUp. Whoever undoes a generation settles it by no tokens
(chatapp.limits.budget), and says whether it had been charged.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from chatapp.limits import budget, rates
from chatapp.limits.budget import RateLimited, most_tokens_of
from chatapp.limits.rates import Rate, Standing
from chatapp.limits.selectors import rates_of
from chatapp.limits.values import Limits
from chatapp.tenants.access import Access
from engine.protocol import Request, estimated_tokens


class Admission:
    def __init__(self, access: Access, limits: Limits) -> None:
        self.access = access
        self.limits = limits
        self._requests = rates_of(access, limits, "requests")
        self._tokens = rates_of(access, limits, "tokens")
        self._standings: tuple[Standing, ...] = ()
        self._estimates: dict[uuid.UUID, int] = {}

    @property
    def _estimate(self) -> int:
        return sum(self._estimates.values())

    @property
    def standings(self) -> tuple[Standing, ...]:
        """How the rates stand behind this request."""
        return tuple(
            Standing(s.what, s.limit, max(0, s.remaining - self._estimate), max(s.reset_s, 60.0))
            if s.what == "tokens" and self._estimate
            else s
            for s in self._standings
        )

    def enter(self) -> None:
        """Count the request. One that finds no tokens left in this minute is refused here, before it costs anything."""
        if not self._requests and not self._tokens:
            return
        refused = rates.take(self._requests, 1)
        self._standings = rates.standings([*self._requests, *self._tokens])
        if refused is not None:
            raise self._limited(*refused)
        used_up = next((s for s in self._standings if s.what == "tokens" and s.remaining < 1), None)
        if used_up is not None:
            rate = next(rate for rate in self._tokens if rate.amount == used_up.limit)
            raise self._limited(rate, max(1.0, used_up.reset_s - 60.0))

    def leave(self) -> None:
        """The request was one that has been counted already."""
        rates.take(self._requests, -1)

    def reserve(self, *, generation: uuid.UUID, deadline: datetime, request: Request, least_output: int | None) -> int:
        """How long each of its answers may be; see budget.reserve."""
        choices, output_tokens = request.params.n, request.params.max_tokens
        assert output_tokens is not None, "answers have a length"
        prompt = estimated_tokens(request)
        before = sum(estimate for other, estimate in self._estimates.items() if other != generation)
        if self._tokens:
            narrowest = min(self._tokens, key=lambda rate: rate.amount)
            if least_output is not None:
                room = narrowest.amount - before - prompt
                output_tokens = max(least_output, min(output_tokens, room // choices))
            asked = before + prompt + choices * output_tokens
            if asked > narrowest.amount:
                refusal = RateLimited(
                    f"This request may need {asked:,} tokens. {self._whose(narrowest)} may use "
                    f"{narrowest.amount:,} a minute: shorten it, or ask for a shorter answer (max_tokens).",
                    param="max_tokens" if least_output is None else "messages",
                )
                refusal.retryable = False
                refusal.standings = self._standings
                raise refusal
        output_tokens = budget.reserve(
            access=self.access,
            limits=self.limits,
            generation=generation,
            deadline=deadline,
            prompt_tokens=most_tokens_of(request),
            output_tokens=output_tokens,
            least_output=least_output,
            choices=choices,
            wanted=self._tokens,
            estimate=prompt,
        )
        self._estimates[generation] = prompt + choices * output_tokens
        return output_tokens

    def charge(self) -> None:
        """Charge the estimate to the tokens of this minute; the reservation says already that this has been done."""
        refused = rates.take(self._tokens, self._estimate)
        if refused is not None:
            self._estimates.clear()
            raise self._limited(*refused)

    def _limited(self, rate: Rate, wait_s: float) -> RateLimited:
        seconds = int(wait_s) + 1
        refusal = RateLimited(
            f"{self._whose(rate)} may use {rate.amount:,} {rate.what} a minute; these are used. "
            f"Try again in {seconds} s.",
            retry_after_s=seconds,
        )
        refusal.standings = self.standings
        return refusal

    def _whose(self, rate: Rate) -> str:
        if not rate.subject:
            return "Your team"
        return "You" if self.access.user is not None else "This key"
