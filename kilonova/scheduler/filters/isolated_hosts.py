"""IsolatedHostsFilter: it reserves some hosts for some images."""

from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays


class IsolatedHostsFilter(BaseHostFilter):
    """Pass only [filter_scheduler]isolated_hosts for images in isolated_images, and only other hosts for other images.

    If restrict_isolated_hosts_to_isolated_images is False, other images may use isolated hosts, too.
    """

    RUN_ON_REBUILD = True
    run_filter_once_per_request = True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts that may run the request's image."""
        isolated = arrays.named(self.conf.filter_scheduler.isolated_hosts)
        return (isolated & self._fits(True, spec_obj)) | (~isolated & self._fits(False, spec_obj))

    def _fits(self, isolated_host: bool, spec_obj: RequestSpec) -> bool:
        section = self.conf.filter_scheduler
        image = spec_obj.image if 'image' in spec_obj else None
        isolated_image = image is not None and 'id' in image and image.id in section.isolated_images
        if isolated_image:
            return isolated_host
        return not (isolated_host and section.restrict_isolated_hosts_to_isolated_images)
