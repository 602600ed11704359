"""The graphics adapter, where the image asks for one."""
from __future__ import annotations

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Video
from kilonova.virt.libvirt.xml.domain import Domain

# Of the field's models, those that QEMU has.
_MODELS = frozenset({'vga', 'cirrus', 'vmvga', 'qxl', 'virtio', 'none', 'bochs'})
_DEFAULT = 'virtio'


class VideoConfigurator:
    """hw_video_model and hw_video_ram. UnsupportedHardware: this host can't give the model."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        model, ram = guest.tuning.video_model, guest.tuning.video_ram
        if not (model or ram) or not guest.settings.is_qemu:
            return
        model = model or _DEFAULT
        if model not in _MODELS or model not in (guest.settings.video_models or _MODELS):
            raise UnsupportedHardware(model=f'video {model}', virt=guest.settings.virt_type)
        domain.devices.append(Video(model, ram * 1024 if ram and model != 'none' else None))
