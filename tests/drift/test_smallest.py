"""The search by itself: what it finds is enough and nothing in it is idle, and it asks no more often than it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flroute.drift.bisect.smallest import most_questions, smallest


class Asked:
    """Counts the questions; never asked twice for the same, nor for what the caller knows: all, and none."""

    def __init__(self, *ways: set[int], of: int) -> None:
        self.ways, self.of, self.seen = ways, of, []

    def __call__(self, some: list[int]) -> bool:
        assert 0 < len(some) < self.of
        assert len(set(some)) == len(some)
        if set(some) not in self.seen:  # the caller keeps answers, so that one may be asked for again
            self.seen.append(set(some))
        return any(way <= set(some) for way in self.ways)


@given(
    st.integers(1, 80).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=4))
    )
)
def test_it_finds_exactly_what_is_needed_in_so_many_questions(case: tuple[int, set[int]]) -> None:
    count, needed = case
    asked = Asked(needed, of=count)
    assert smallest(range(count), asked) == sorted(needed)
    assert len(asked.seen) <= most_questions(count, len(needed))


@given(
    st.integers(2, 40).flatmap(
        lambda n: st.lists(
            st.sets(st.integers(0, n - 1), min_size=1, max_size=4), min_size=1, max_size=4
        ).map(lambda w: (n, w))
    )
)
def test_of_several_ways_it_finds_one_with_nothing_idle(case: tuple[int, list[set[int]]]) -> None:
    count, ways = case
    asked = Asked(*ways, of=count)
    found = set(smallest(range(count), asked))
    assert any(way <= found for way in ways)
    for thing in found:
        assert not any(way <= found - {thing} for way in ways)


@given(st.data())
def test_where_more_may_make_it_fail_the_answer_holds_all_the_same(data: st.DataObject) -> None:
    answers: dict[frozenset[int], bool] = {frozenset(range(9)): True, frozenset(): False}

    def holds(some: list[int]) -> bool:
        return answers.setdefault(frozenset(some), data.draw(st.booleans()))

    assert answers[frozenset(smallest(range(9), holds))]


def test_one_thing_is_found_without_a_question() -> None:
    assert smallest(["a"], lambda some: 1 / 0) == ["a"]  # type: ignore[arg-type, return-value]
