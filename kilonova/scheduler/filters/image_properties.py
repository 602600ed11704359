"""ImagePropertiesFilter: it passes hosts that can run guests of the image's architecture, hypervisor type and mode."""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging
from oslo_utils import versionutils

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter
from kilonova.scheduler.filters.compute_capabilities import address_bits_fit
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)


class ImagePropertiesFilter(BaseHostFilter):
    """Pass only hosts that support the image's architecture, hypervisor type and version, mode and address size.

    The properties are hw_architecture (or the configured default), img_hv_type, hw_vm_mode, img_hv_requested_version
    and hw_maxphysaddr_bits.
    """

    RUN_ON_REBUILD = True
    run_filter_once_per_request = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host supports the image's properties."""
        wanted, version, bits = self._wanted(spec_obj)
        if any(wanted) and not any(self._fits(wanted, kind) for kind in host_state.supported_instances):
            LOG.debug(
                '%(host)s does not support the image properties %(wanted)s', {'host': host_state, 'wanted': wanted}
            )
            return False
        return self._version_fits(host_state, version) and address_bits_fit(host_state, bits)

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for hosts with the image's architecture, hypervisor type and mode.

        Return PER_HOST (check host by host) if the image names a hypervisor version or an address size. Return None
        (all hosts pass) if the image names none of these properties.
        """
        wanted, version, bits = self._wanted(spec_obj)
        if version or bits is not None:
            return PER_HOST
        return (
            arrays.table.kinds(lambda kinds: any(self._fits(wanted, kind) for kind in kinds)) if any(wanted) else None
        )

    def _wanted(self, spec_obj: RequestSpec) -> tuple[tuple[Any, ...], str | None, int | None]:
        """Return ((architecture, hypervisor type, mode), hypervisor version predicate, number of address bits)."""
        default = self.conf.filter_scheduler.image_properties_default_architecture
        image = spec_obj.image if 'image' in spec_obj else None
        if image is None or 'properties' not in image:
            return (default, None, None), None, None
        get = image.properties.get
        return (
            (get('hw_architecture') or default, get('img_hv_type'), get('hw_vm_mode')),
            get('img_hv_requested_version'),
            get('hw_maxphysaddr_bits'),
        )

    @staticmethod
    def _fits(wanted: tuple[Any, ...], kind: list[str]) -> bool:
        return all(one is None or one == has for one, has in zip(wanted, kind, strict=False))

    @staticmethod
    def _version_fits(host_state: HostState, predicate: str | None) -> bool:
        if not predicate or not host_state.hypervisor_version:
            return True
        version = versionutils.convert_version_to_str(host_state.hypervisor_version)
        return versionutils.VersionPredicate(predicate).satisfied_by(version)
