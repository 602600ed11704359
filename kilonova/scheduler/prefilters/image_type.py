"""Prefilter for the disk format of the image."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts


def image_type(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require hosts that can boot the image's disk format if [scheduler]query_placement_for_image_type_support is on.

    Servers that boot from a volume are not changed, because a volume has no format.
    """
    if not facts.conf.scheduler.query_placement_for_image_type_support or ('is_bfv' in spec and spec.is_bfv):
        return
    image = spec.image if 'image' in spec else None
    if image is not None and 'disk_format' in image and image.disk_format:
        query.root_required.add(f'COMPUTE_IMAGE_TYPE_{image.disk_format.upper()}')
