"""ImagePropertiesWeigher: it puts servers with similar images on the same hosts.

With a negative multiplier, it puts such servers on different hosts.
"""

from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.ratios import ratios
from kilonova.scheduler.weighers import LOOP, BaseHostWeigher


class ImagePropertiesWeigher(BaseHostWeigher):
    """Prefer hosts whose servers have images with the same properties as the request's image.

    For each server of a host, each equal property adds its ratio in [filter_scheduler]image_props_weight_setting. If
    this option is empty, each equal property adds 1.
    """

    multiplier = 'image_props_weight_multiplier'

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        wanted = self._wanted(weight_properties)
        if not wanted:
            return 0
        setting = ratios(
            tuple(self.conf.filter_scheduler.image_props_weight_setting), '[filter_scheduler]image_props_weight_setting'
        )
        return sum(
            setting.get(name, 0.0) if setting else 1.0
            for has in host_state.image_properties.values()
            for name, value in wanted.items()
            if has.get(name) == value
        )

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return LOOP (weigh host by host) if the request's image has properties, otherwise zeros."""
        return LOOP if self._wanted(weight_properties) else arrays.table['live'] * 0.0

    @staticmethod
    def _wanted(spec_obj: RequestSpec) -> dict[str, str]:
        """Return the properties of the request's image as texts, because servers store image properties as texts."""
        image = spec_obj.image if 'image' in spec_obj else None
        properties = image.properties if image is not None and 'properties' in image else None
        return {} if properties is None else {name: str(value) for name, value in properties.to_dict().items()}
