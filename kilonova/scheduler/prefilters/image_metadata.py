"""Prefilter for hardware properties of the image, which are translated to traits."""

from __future__ import annotations

import os_traits
from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, image_property

LOG = logging.getLogger(__name__)

# {image property: prefix of the required trait}. Nova uses COMPUTE_VIOMMU for hw_viommu_model, which matches no trait.
PREFIXES = {
    'hw_cdrom_bus': 'COMPUTE_STORAGE_BUS',
    'hw_disk_bus': 'COMPUTE_STORAGE_BUS',
    'hw_video_model': 'COMPUTE_GRAPHICS_MODEL',
    'hw_vif_model': 'COMPUTE_NET_VIF_MODEL',
    'hw_architecture': 'HW_ARCH',
    'hw_emulation_architecture': 'COMPUTE_ARCH',
    'hw_viommu_model': 'COMPUTE_VIOMMU_MODEL',
}
_KNOWN = frozenset(os_traits.get_traits())


def image_metadata(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require the traits for the image's hardware properties if [scheduler]image_metadata_prefilter is on.

    If the trait for a property does not exist, an error is logged and no trait is required at all.
    """
    if not facts.conf.scheduler.image_metadata_prefilter:
        return
    found = set()
    for name, prefix in PREFIXES.items():
        value = image_property(spec, name)
        if value is None:
            continue
        trait = f'{prefix}_{value.replace("-", "_").upper()}'
        if trait not in _KNOWN:
            LOG.error('Computed trait name %(trait)s is not valid; is os-traits up to date?', {'trait': trait})
            return
        found.add(trait)
    query.root_required |= found
