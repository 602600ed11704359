"""Filters that compare the metadata of a host's aggregates with a request.

Filters of other packages may use ``aggregate_metadata``, ``aggregate_values`` and ``lowest``, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter, extra_specs
from kilonova.scheduler.filters.compute_capabilities import NOT_CAPABILITIES
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)

Metadata = Sequence[Mapping[str, str]]

SCOPE = 'aggregate_instance_extra_specs'
TENANT = 'filter_tenant_id'
FLAVOR = 'instance_type'


def words(value: str) -> set[str]:
    """Split a text at commas: 'a, b' becomes {'a', 'b'}."""
    return {word.strip() for word in value.split(',') if word.strip()}


def merged(metadata: Metadata) -> dict[str, set[str]]:
    """Return {metadata key: set of its values} for several aggregates. Values are split at commas.

    ``metadata`` has the metadata of each aggregate.
    """
    found: dict[str, set[str]] = {}
    for one in metadata:
        for key, value in one.items():
            found.setdefault(key, set()).update(words(value))
    return found


def metadata_of(host_state: HostState) -> list[Mapping[str, str]]:
    """Return the metadata of each aggregate that contains the host."""
    return [aggregate.metadata or {} for aggregate in host_state.aggregates]


def aggregate_metadata(host_state: HostState, key: str | None = None) -> dict[str, set[str]]:
    """Return {metadata key: set of values} for the aggregates of the host. Values are split at commas.

    If ``key`` is given, aggregates without this metadata key are left out.
    """
    return merged([one for one in metadata_of(host_state) if key is None or key in one])


def aggregate_values(host_state: HostState, key: str) -> set[str]:
    """Return the values of a key in the host's aggregates, without splitting them into words."""
    return {one[key] for one in metadata_of(host_state) if key in one}


def lowest(
    values: Iterable[str], default: Any = None, cast_to: Callable[[str], Any] = int, based_on: Callable[..., Any] = min
) -> Any:
    """Return the lowest of the numbers in ``values``, which are texts, or ``default`` if ``values`` is empty.

    ``cast_to`` converts a text to a number. ``based_on`` chooses one of the numbers: with ``max`` in place of ``min``,
    the result is the highest number. Raises ValueError if a text is not a number.
    """
    numbers = [cast_to(value) for value in values]
    return based_on(numbers) if numbers else default


class AggregateFilter(BaseHostFilter):
    """Base class of filters that call ``fits`` with the metadata of the host's aggregates."""

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        """Return whether hosts with this aggregate metadata may take the request. Subclasses must implement it."""
        raise TypeError(f'{type(self).__name__} has no method fits')

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts whose aggregate metadata passes ``fits``."""
        return arrays.by_aggregates(lambda metadata: self.fits(metadata, spec_obj))


class AggregateInstanceExtraSpecsFilter(AggregateFilter):
    """Pass hosts whose aggregate metadata meets the flavor's aggregate_instance_extra_specs:* and unscoped extra specs.

    Each extra spec must be met by at least one aggregate of the host. Different aggregates may meet different extra
    specs.
    """

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        """Return whether each of the flavor's extra specs is met by a metadata value."""
        has = merged(metadata)
        for key, wanted in spec_obj.flavor.extra_specs.items():
            scope, colon, name = key.partition(':')
            if scope != SCOPE if colon else key in NOT_CAPABILITIES:
                continue
            if not any(extra_specs.match(value, wanted) for value in has.get(name if colon else key, ())):
                return False
        return True


class AggregateImagePropertiesIsolation(AggregateFilter):
    """Reject hosts whose aggregate metadata has another value for a property of the image.

    If [filter_scheduler]aggregate_image_properties_isolation_namespace is set, only keys with this prefix are compared.
    """

    RUN_ON_REBUILD = True
    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        """Return False if a metadata key has the name of an image property but not its value, otherwise True."""
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
    """Reject hosts in aggregates whose metadata ``filter_tenant_id…`` names only other projects."""

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        """Return whether the metadata names no projects, or names the request's project."""
        allowed: set[str] = set()
        for key, values in merged(metadata).items():
            if key.startswith(TENANT):
                allowed |= values
        return not allowed or spec_obj.project_id in allowed


class AggregateTypeAffinityFilter(AggregateFilter):
    """Reject hosts in aggregates whose metadata ``instance_type`` names only other flavors."""

    run_filter_once_per_request = True

    def fits(self, metadata: Metadata, spec_obj: RequestSpec) -> bool:
        """Return whether the metadata names no flavors, or names the request's flavor."""
        values = [one[FLAVOR] for one in metadata if FLAVOR in one]
        return not values or any(spec_obj.flavor.name in words(value) for value in values)
