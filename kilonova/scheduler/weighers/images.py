"""ImagePropertiesWeigher: servers of like images together, or with a negative multiplier apart."""
from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look
from kilonova.scheduler.ratios import ratios
from kilonova.scheduler.weighers import LOOP, BaseHostWeigher


class ImagePropertiesWeigher(BaseHostWeigher):
    """For each server of the host and each property that its image shares with the request's: the property's ratio in
    [filter_scheduler]image_props_weight_setting; empty: 1 for any property."""

    multiplier = 'image_props_weight_multiplier'

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        wanted = self._wanted(weight_properties)
        if not wanted:
            return 0
        setting = ratios(tuple(self.conf.filter_scheduler.image_props_weight_setting),
                         '[filter_scheduler]image_props_weight_setting')
        return sum(setting.get(name, 0.0) if setting else 1.0 for has in host_state.image_properties.values()
                   for name, value in wanted.items() if has.get(name) == value)

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return LOOP if self._wanted(weight_properties) else look.table['live'] * 0.0

    @staticmethod
    def _wanted(spec_obj: RequestSpec) -> dict[str, str]:
        """The properties of the request's image, as servers keep them."""
        image = spec_obj.image if 'image' in spec_obj else None
        properties = image.properties if image is not None and 'properties' in image else None
        return {} if properties is None else {name: str(value) for name, value in properties.to_dict().items()}
