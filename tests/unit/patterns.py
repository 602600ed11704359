"""Whether a regular expression can cost more than a constant a character, whatever text it is given.

    weakness('(a+)+$')              # 'two ways around a loop': exponential
    weakness('[a-z]+[a-z]+')        # 'two loops in a row': quadratic, or worse
    weakness('<[^>]*>', search=True)        # the same, as a search begins again at each character
    weakness('[0-9]+(,[0-9]+)*')    # None

The expression becomes an automaton of its positions (Glushkov's), and two paths are looked for that read the same text:
from a place back to itself, or from one loop to a later one. What only may stand there (look-arounds, ends) counts as
nothing, a counted repetition as an endless one: an expression can be told weak that isn't, never the other way round.
Back references are always weak.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

# Characters that stand for all others.
_ALPHABET = frozenset(chr(number) for number in (*range(0x180), 0x0660, 0x2003, 0x4E2D, 0x1F4A9))
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdecimal,
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_WORD: lambda char: char.isalnum() or char == '_',
    sre.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    sre.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    sre.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == '_'),
}

Pair = tuple[int, int]


class _Part(NamedTuple):
    """A piece of the expression: whether it may be empty, and its first and last positions."""

    empty: bool
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


class _Automaton:
    def __init__(self, tree: Any, flags: int) -> None:
        self.texts: list[frozenset[str]] = []
        self.ways: Counter[Pair] = Counter()
        self.refers_back = False
        self._folds = bool(flags & re.IGNORECASE)
        self.whole = self._row(tree)

    # -- building ------------------------------------------------------------------------------------------------------
    def _place(self, chars: Iterable[str]) -> _Part:
        found = set(chars)
        if self._folds:
            found |= {other for char in found for other in (char.lower(), char.upper()) if len(other) == 1}
        self.texts.append(frozenset(found))
        place = len(self.texts) - 1
        return _Part(False, (place,), (place,))

    def _join(self, before: Iterable[int], after: Iterable[int]) -> None:
        after = tuple(after)
        self.ways.update((one, two) for one in before for two in after)

    def _row(self, items: Any) -> _Part:
        whole = _Part(True)
        for item in items:
            part = self._item(*item)
            self._join(whole.last, part.first)
            whole = _Part(
                whole.empty and part.empty,
                whole.first + part.first if whole.empty else whole.first,
                whole.last + part.last if part.empty else part.last,
            )
        return whole

    def _item(self, kind: Any, what: Any) -> _Part:
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._place(_chars(kind, what))
        if kind is sre.BRANCH:
            parts = [self._row(branch) for branch in what[1]]
            return _Part(
                any(part.empty for part in parts),
                sum((part.first for part in parts), ()),
                sum((part.last for part in parts), ()),
            )
        if kind is sre.SUBPATTERN:
            return self._row(what[3])
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, items = what
            part = self._row(items)
            if most != 1:
                self._join(part.last, part.first)
            return _Part(part.empty or least == 0, part.first, part.last)
        if kind is sre.ATOMIC_GROUP:
            return self._row(what)
        self.refers_back |= kind in (sre.GROUPREF, sre.GROUPREF_EXISTS)
        return _Part(True)

    # -- asking --------------------------------------------------------------------------------------------------------
    @functools.cached_property
    def after(self) -> list[set[int]]:
        """The places that follow each place."""
        found: list[set[int]] = [set() for _ in self.texts]
        for one, two in self.ways:
            found[one].add(two)
        return found

    @functools.cached_property
    def reached(self) -> list[set[int]]:
        """The places behind each place."""
        return [_reach(place, lambda one: iter(self.after[one])) for place in range(len(self.texts))]

    @functools.cached_property
    def loops(self) -> list[int]:
        """The places that can be come back to."""
        return [place for place, others in enumerate(self.reached) if place in others]

    def together(self, *places: int) -> Iterator[tuple[int, ...]]:
        """Where paths that are at these places are after one character that all of them read."""
        found: list[tuple[int, ...]] = [()]
        for place in places:
            found = [
                (*row, step)
                for row in found
                for step in self.after[place]
                if frozenset.intersection(*(self.texts[each] for each in (*row, step)))
            ]
        return iter(found)


def _chars(kind: Any, what: Any) -> Iterable[str]:
    if kind is sre.ANY:
        return _ALPHABET
    if kind is sre.LITERAL:
        return {chr(what)}
    if kind is sre.NOT_LITERAL:
        return _ALPHABET - {chr(what)}
    found: set[str] = set()
    for inner, value in what:
        if inner is sre.LITERAL:
            found.add(chr(value))
        elif inner is sre.RANGE:
            found |= {char for char in _ALPHABET if value[0] <= ord(char) <= value[1]}
        elif inner is sre.CATEGORY:
            found |= {char for char in _ALPHABET if _CATEGORIES[value](char)}
    return _ALPHABET - found if what[0][0] is sre.NEGATE else found


def _reach(start: Any, steps: Callable[[Any], Iterator[Any]]) -> set[Any]:
    """All that can be reached in one step or more."""
    found: set[Any] = set()
    todo = [start]
    while todo:
        for place in steps(todo.pop()):
            if place not in found:
                found.add(place)
                todo.append(place)
    return found


def weakness(pattern: str, flags: int = 0, search: bool = False) -> str | None:
    """What makes the expression slow, or None. ``search``: it may begin anywhere in the text."""
    tree = parser.parse(pattern, flags)
    anchored = bool(tree.data) and tree.data[0] in ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))
    before = [(sre.MAX_REPEAT, (0, sre.MAXREPEAT, [(sre.ANY, None)]))] if search and not anchored else []
    automaton = _Automaton([*before, *tree.data], tree.state.flags)
    if automaton.refers_back:
        return 'a back reference'
    # A search that has come to a last place has found something, unless it must be at the end.
    ends = bool(tree.data) and tree.data[-1][0] is sre.AT
    found = frozenset(automaton.whole.last) if before and not ends else frozenset()
    if _two_ways(automaton):
        return 'two ways around a loop'
    return 'two loops in a row' if _in_a_row(automaton, found) else None


def _two_ways(automaton: _Automaton) -> bool:
    """Whether some text leads from a place back to it in two ways: each loop doubles the paths."""
    reached = automaton.reached
    if any(ways > 1 and one in reached[two] for (one, two), ways in automaton.ways.items()):
        return True
    for place in automaton.loops:
        inside = {other for other in reached[place] if place in reached[other]}

        def pairs(now: Any, inside: set[int] = inside) -> Iterator[Any]:
            return (row for row in automaton.together(*now) if inside.issuperset(row))

        if any(row[0] != row[1] and (place, place) in _reach(row, pairs) for row in _reach((place, place), pairs)):
            return True
    return False


def _in_a_row(automaton: _Automaton, found: frozenset[int]) -> bool:
    """Whether some text leads around a loop, around a later one, and from the one to the other: there are as many paths
    as places to change over. ``found``: places at which a search, whose loop is the first, has ended."""
    reached = automaton.reached
    for one, two in itertools.product(automaton.loops, repeat=2):
        if two not in reached[one] or one in reached[two] or (one == 0 and two in found):
            continue

        def triples(now: Any, one: int = one, two: int = two) -> Iterator[Any]:
            return (
                row
                for row in automaton.together(*now)
                if one in reached[row[0]] and two in reached[row[2]] and (row[1] == two or two in reached[row[1]])
            )

        if (one, two, two) in _reach((one, one, two), triples):
            return True
    return False
