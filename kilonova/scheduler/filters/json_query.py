"""JsonFilter: it evaluates a JSON expression in the hint ``query`` for each host.

    ["and", [">=", "$free_ram_mb", 1024], ["in", "$hypervisor_type", "QEMU", "KVM"]]

Operators are = < > in <= >= not or and. ``$a.b`` is the entry b of the host's attribute a. No host passes if the query
is invalid.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)

# Maximum depth of nested lists in a query.
DEEPEST = 32


class BadQuery(ValueError):
    """The JSON expression in the scheduler hint ``query`` cannot be evaluated."""


def _all_of(compare: Callable[[Any, Any], bool]) -> Callable[[list[Any]], bool]:
    """Return a function that takes a list and returns whether ``compare(first entry, x)`` is true for each other x."""

    def apply(arguments: list[Any]) -> bool:
        if len(arguments) < 2:
            return False
        first, *others = arguments
        try:
            return all(compare(first, other) for other in others)
        except TypeError:
            # Values of different types, for example None or a text and a number, cannot be ordered.
            return False

    return apply


_OPERATORS: Mapping[str, Callable[[list[Any]], Any]] = {
    '=': _all_of(operator.eq),
    '<': _all_of(operator.lt),
    '>': _all_of(operator.gt),
    '<=': _all_of(operator.le),
    '>=': _all_of(operator.ge),
    'in': lambda arguments: arguments[0] in arguments[1:] if arguments else False,
    'not': lambda arguments: not any(arguments),
    'or': any,
    'and': all,
}


def evaluate(query: Any, host_state: HostState, depth: int = 0) -> Any:
    """Return the value of a JSON expression for a host. Raises BadQuery if the expression is invalid."""
    if depth > DEEPEST:
        raise BadQuery(f'the expression is nested more than {DEEPEST} levels deep')
    if isinstance(query, str) and query.startswith('$'):
        return _read(host_state, query[1:])
    if not isinstance(query, list):
        return query
    if not query:
        return True
    name, *arguments = query
    if not isinstance(name, str) or name not in _OPERATORS:
        raise BadQuery(f'{name!r} is not an operator')
    return _OPERATORS[name]([evaluate(argument, host_state, depth + 1) for argument in arguments])


def _parsed(text: str) -> list[Any]:
    query = json.loads(text)
    if not isinstance(query, list):
        raise BadQuery('the expression is not a list')
    return query


def _read(host_state: HostState, path: str) -> Any:
    first, *rest = path.split('.')
    # Attributes whose name begins with '_' are private and cannot be read by a query.
    value = None if first.startswith('_') else getattr(host_state, first, None)
    for step in rest:
        value = value.get(step) if isinstance(value, Mapping) else None
    return None if callable(value) else value


class JsonFilter(BaseHostFilter):
    """Pass only hosts for which the JSON expression in the hint ``query`` is true."""

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the JSON expression in the scheduler hint ``query`` is true for the host.

        Return True if the request has no hint ``query``, and False if the expression is invalid.
        """
        asked = spec_obj.get_scheduler_hint('query')
        if not asked:
            return True
        try:
            return all(evaluate(_parsed(query), host_state) for query in ([asked] if isinstance(asked, str) else asked))
        except (ValueError, TypeError, RecursionError) as error:
            LOG.debug(
                'The hint query %(query)s cannot be evaluated for %(host)s: %(error)s',
                {'query': asked, 'host': host_state, 'error': error},
            )
            return False

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return PER_HOST (check each host) if the request has the hint ``query``, otherwise None (all hosts pass)."""
        return PER_HOST if spec_obj.get_scheduler_hint('query') else None
