"""Filters that read the metadata of the aggregates a host is in.

``aggregate_metadata``, ``aggregate_values`` and ``lowest`` are what filters of others read aggregates with, too.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter, extra_specs
from kilonova.scheduler.filters.compute_capabilities import NOT_CAPABILITIES
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look

LOG = logging.getLogger(__name__)

Metadata = Sequence[Mapping[str, str]]

SCOPE = 'aggregate_instance_extra_specs'
TENANT = 'filter_tenant_id'
FLAVOR = 'instance_type'


def words(value: str) -> set[str]:
    """'a, b' → {'a', 'b'}."""
    return {word.strip() for word in value.split(',') if word.strip()}


def merged(metadata: Metadata) -> dict[str, set[str]]:
    """{key: the words of its value in all aggregates}."""
    found: dict[str, set[str]] = {}
    for one in metadata:
        for key, value in one.items():
            found.setdefault(key, set()).update(words(value))
    return found


def metadata_of(host_state: HostState) -> list[Mapping[str, str]]:
    """The metadata of each aggregate that the host is in."""
    return [aggregate.metadata or {} for aggregate in host_state.aggregates]


def aggregate_metadata(host_state: HostState, key: str | None = None) -> dict[str, set[str]]:
    """{key: words} of the host's aggregates, or of those of them that have ``key``."""
    return merged([one for one in metadata_of(host_state) if key is None or key in one])


def aggregate_values(host_state: HostState, key: str) -> set[str]:
    """The values, unsplit, that the host's aggregates have for a key."""
    return {one[key] for one in metadata_of(host_state) if key in one}


def lowest(values: Iterable[str], default: Any = None, cast_to: Callable[[str], Any] = int,
           based_on: Callable[..., Any] = min) -> Any:
    """The lowest (by ``based_on``) of some numbers as text, ``default`` of none. ValueError for what is no number."""
    numbers = [cast_to(value) for value in values]
    return based_on(numbers) if numbers else default


class AggregateFilter(BaseHostFilter):
    """Base: ``fits(metadata of the host's aggregates, request)`` decides."""

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        raise TypeError(f'{type(self).__name__} has no fits')

    def mask(self, look: Look, spec_obj: RequestSpec) -> Any:
        return look.by_aggregates(lambda metadata: self.fits(metadata, spec_obj))


class AggregateInstanceExtraSpecsFilter(AggregateFilter):
    """``aggregate_instance_extra_specs:<key>``, or a key without scope: an aggregate says so."""

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        has = merged(metadata)
        for key, wanted in spec_obj.flavor.extra_specs.items():
            scope, colon, name = key.partition(':')
            if scope != SCOPE if colon else key in NOT_CAPABILITIES:
                continue
            if not any(extra_specs.match(value, wanted) for value in has.get(name if colon else key, ())):
                return False
        return True


class AggregateImagePropertiesIsolation(AggregateFilter):
    """Metadata that is an image property keeps out images that have another value for it.

    [filter_scheduler]aggregate_image_properties_isolation_namespace: only keys that begin so.
    """

    RUN_ON_REBUILD = True
    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        image = spec_obj.image if 'image' in spec_obj else None
        properties = image.properties if image is not None and 'properties' in image else None
        if properties is None:
            return True
        prefix = self._prefix()
        for key, values in merged(metadata).items():
            if key.startswith(prefix) and key in properties.fields:
                value = properties.get(key)
                if value is not None and str(value) not in values:
                    return False
        return True

    def _prefix(self) -> str:
        section = self.conf.filter_scheduler
        namespace = section.aggregate_image_properties_isolation_namespace
        return namespace + section.aggregate_image_properties_isolation_separator if namespace else ''


class AggregateMultiTenancyIsolation(AggregateFilter):
    """Aggregates with ``filter_tenant_id…`` are for these projects only."""

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        allowed: set[str] = set()
        for key, values in merged(metadata).items():
            if key.startswith(TENANT):
                allowed |= values
        return not allowed or spec_obj.project_id in allowed


class AggregateTypeAffinityFilter(AggregateFilter):
    """Aggregates with ``instance_type`` are for the flavors of these names only."""

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        values = [one[FLAVOR] for one in metadata if FLAVOR in one]
        return not values or any(spec_obj.flavor.name in words(value) for value in values)
