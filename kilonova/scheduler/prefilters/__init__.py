"""Prefilters: they add conditions to each query to Placement, in addition to the request's own resources.

    prefilters.run(plugins.load_prefilters(conf), query, spec, facts)

A prefilter is a function ``(query, spec, facts) -> None`` that changes the query. ``facts`` has the settings and
aggregates that prefilters need. If a prefilter raises ``query.RequestFilterFailed``, scheduling ends. Prefilters are
entry points of group ``kilonova.scheduler.prefilters``. Kilonova's own run first, in the order of ``ALL``, and then
those of other packages, sorted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oslo_log import log as logging

from kilonova import errors
from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import is_forced_move
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, RequestFilterFailed
from kilonova.scheduler.plugins.guard import FAILED
from kilonova.scheduler.prefilters.availability_zone import availability_zone
from kilonova.scheduler.prefilters.compute_status import compute_status
from kilonova.scheduler.prefilters.features import (
    accelerators,
    ephemeral_encryption,
    packed_virtqueue,
    remote_managed_ports,
    tpm_secret_security,
    virtio_sound,
)
from kilonova.scheduler.prefilters.image_metadata import image_metadata
from kilonova.scheduler.prefilters.image_type import image_type
from kilonova.scheduler.prefilters.isolated_aggregates import isolated_aggregates
from kilonova.scheduler.prefilters.owner import owner
from kilonova.scheduler.prefilters.tenant_aggregate import tenant_aggregate

LOG = logging.getLogger(__name__)

Prefilter = Callable[[CandidateQuery, RequestSpec, PrefilterFacts], None]


ALL: tuple[Prefilter, ...] = (
    tenant_aggregate,
    availability_zone,
    image_type,
    compute_status,
    isolated_aggregates,
    image_metadata,
    accelerators,
    packed_virtqueue,
    remote_managed_ports,
    ephemeral_encryption,
    virtio_sound,
    tpm_secret_security,
    owner,
)


# Prefilters that apply operators' rules about hosts. All other prefilters add requirements of the server itself.
POLICIES = (tenant_aggregate, availability_zone, compute_status, isolated_aggregates)


def run(prefilters: Iterable[Prefilter], query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Run all prefilters in order. For a forced move, skip prefilters that apply operators' rules (``POLICIES``).

    If a prefilter raises an error that is not a KilonovaError, RequestFilterFailed is raised in its place, because it
    is unknown which hosts the prefilter would have excluded.
    """
    forced = is_forced_move(spec)
    for one in prefilters:
        if forced and one in POLICIES:
            continue
        try:
            one(query, spec, facts)
        except errors.KilonovaError:
            raise
        except Exception as error:
            name = getattr(one, '__name__', repr(one))
            FAILED[name] += 1
            LOG.exception('Prefilter %s raised an error, so the request is refused', name)
            raise RequestFilterFailed(reason=f'prefilter {name} failed') from error
