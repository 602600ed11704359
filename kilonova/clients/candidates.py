"""Functions for long queries to Placement: check the length of a query, and merge the responses to its parts.

If a query is too long for a URL, ``query.ask`` sends it in several parts. ``PlacementClient`` passes the functions of
this module to ``query.ask``, which merges the responses with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kilonova import errors

Found = dict[str, Any]

# The maximum length of a query that can't be divided. Apache and nginx accept request lines of about 8,190 characters.
MOST = 7500


class QueryTooLong(errors.Invalid):
    """A server requests so many different devices or ports that the query is too long for web servers."""

    msg_fmt = (
        'The request has %(groups)s groups of resources (devices, ports, accelerators). Its query to Placement '
        'would have %(length)s characters; web servers accept at most %(most)s. Ask for fewer devices, ports or '
        'accelerators that differ from one another.'
    )


def checked(text: str) -> str:
    """Return the query string unchanged. Raises QueryTooLong if it has more than MOST characters."""
    if len(text) > MOST:
        groups = sum(part.startswith('resources') for part in text.split('&'))
        raise QueryTooLong(groups=groups, length=len(text), most=MOST)
    return text


def merge(one: Found, other: Found, either: bool) -> Found:
    """Merge two responses: return the allocation candidates that are in at least one of them, without duplicates.

    If ``either`` is False, return only candidates that are in each of the two responses.
    """
    theirs = {_identity(request) for request in other['allocation_requests']}
    requests = [request for request in one['allocation_requests'] if either or _identity(request) in theirs]
    summaries = dict(one['provider_summaries'])
    if either:
        ours = {_identity(request) for request in one['allocation_requests']}
        requests += [request for request in other['allocation_requests'] if _identity(request) not in ours]
        summaries = {**other['provider_summaries'], **summaries}
    return {**one, 'allocation_requests': requests, 'provider_summaries': summaries}


def first(found: Found, limit: int | None) -> Found:
    """Return the response with at most ``limit`` of its candidates, or with all if ``limit`` is None."""
    return {**found, 'allocation_requests': found['allocation_requests'][:limit]}


def merge_providers(one: list[Found], other: list[Found], either: bool) -> list[Found]:
    """Merge two responses: return the resource providers that are in at least one of them, without duplicates.

    If ``either`` is False, return only providers that are in each of the two responses.
    """
    there = {provider['uuid'] for provider in one}
    theirs = {provider['uuid'] for provider in other}
    if not either:
        return [provider for provider in one if provider['uuid'] in theirs]
    return [*one, *(provider for provider in other if provider['uuid'] not in there)]


def merge_names(one: set[str], other: set[str], either: bool) -> set[str]:
    """Merge the sets of trait names in Placement's responses to the two parts of a query.

    Return the names that are in at least one set, or, if ``either`` is False, the names that are in both sets.
    """
    return one | other if either else one & other


def _identity(request: Mapping[str, Any]) -> str:
    """Return a text that identifies an allocation candidate: two equal candidates have the same text.

    The text has the amounts by provider, and the providers of each request group.
    """
    mappings = {suffix: sorted(providers) for suffix, providers in request.get('mappings', {}).items()}
    return json.dumps([request['allocations'], mappings], sort_keys=True)
