"""Random operations against a plain model: a dict of the first granule to the granules."""

import pytest
from conformance.steps import G
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from reservation_help import places, refused

from vmmcy.reservation import VmmReservation, check_map

GRANULES = 12
ranges = st.tuples(st.integers(0, GRANULES - 1), st.integers(1, GRANULES)).map(
    lambda pair: (pair[0], min(pair[1], GRANULES - pair[0]))
)


class Model(RuleBasedStateMachine):
    """The reservation does what sets of granules say."""

    def __init__(self):
        super().__init__()
        self.reservation = VmmReservation(GRANULES * G)
        self.held = {}

    def owner(self):
        return {at + k: at for at, count in self.held.items() for k in range(count)}

    @rule(span=ranges, retain=st.booleans())
    def map(self, span, retain):
        start, count = span
        owner = self.owner()
        there = [owner[granule] for granule in range(start, start + count) if granule in owner]
        if there:
            end = there[0] + self.held[there[0]]
            text = f"mapping [{there[0] * G}, {end * G}) is there already"
            for act in (self.reservation.map, lambda *a: check_map(self.reservation, *a)):
                with refused(f"VmmReservation.map: {text}"):
                    act(start * G, count * G)
        else:
            check_map(self.reservation, start * G, count * G)
            handle = self.reservation.map(start * G, count * G, retain_handle=retain)
            assert (handle is not None) == retain
            self.held[start] = count

    @rule(span=ranges, chunk=st.none() | st.integers(1, 4), ragged=st.booleans())
    def commit(self, span, chunk, ragged):
        start, count = span
        new, owner = {}, self.owner()
        for granule in range(start, start + count):
            if granule in owner:
                continue
            last = next(reversed(new), None)
            if last is not None and last + new[last] == granule and new[last] != chunk:
                new[last] += 1
            else:
                new[granule] = 1
        inset = 1 if ragged else 0
        backed = self.reservation.commit(
            start * G + inset,
            count * G - 2 * inset,
            chunk_bytes=None if chunk is None else chunk * G,
        )
        assert backed == sum(new.values()) * G
        self.held |= new

    @rule(span=ranges)
    def unmap(self, span):
        start, count = span
        owner = self.owner()
        parts = {owner.get(granule) for granule in range(start, start + count)}
        whole = None not in parts and sum(self.held[at] for at in parts) == count
        if whole:
            self.reservation.unmap(start * G, count * G)
            for at in parts:
                del self.held[at]
        else:
            with pytest.raises(ValueError, match="cuts mapping|nothing is mapped"):
                self.reservation.unmap(start * G, count * G)

    @rule(span=ranges, ragged=st.booleans())
    def decommit(self, span, ragged):
        start, count = span
        first, end = start * G + ragged, (start + count) * G - ragged
        inside = [
            at for at, held in self.held.items() if first <= at * G and (at + held) * G <= end
        ]
        assert self.reservation.decommit(first, end - first) == G * sum(
            self.held.pop(at) for at in inside
        )

    @invariant()
    def agree(self):
        assert places(self.reservation) == sorted(self.held.items())
        assert self.reservation.mapped_bytes == sum(self.held.values()) * G

    def teardown(self):
        self.reservation.close()
        assert self.reservation.closed


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
