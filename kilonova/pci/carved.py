"""Virtual functions of NVIDIA cards that are each one vGPU. An operator assigns a vGPU type to each function.

    withheld([(found, spec), …], reported=True)      # {'0000:3b:00.6': 'its nvidia/current_vgpu_type is 0: …'}

The kernel shows the type as ``nvidia/current_vgpu_type`` of the function (``sysfs.vgpu_type``). A function without a
type can't be given to a guest. The module's functions read no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kilonova.pci.device import VGPU_TYPE, DiscoveredDevice
from kilonova.pci.spec import DeviceSpec

FILE = 'nvidia/current_vgpu_type'


def problem(now: int | None, wanted: str | None = None) -> str | None:
    """Return the reason why a virtual function can't be given to a guest, or None if it can.

    ``now`` is the number of the function's present vGPU type. It is 0 if an operator has not set a type yet, or None if
    the function is no vGPU. ``wanted`` is the type that the function's row in pci_devices records, or None. A function
    with another type than ``wanted`` can't be used, because the server expects the recorded type.
    """
    if now == 0:
        return f'its {FILE} is 0: it has no vGPU type'
    if now is not None and wanted is not None and str(now) != wanted:
        return f'its {FILE} is {now}, not {wanted}'
    return None


def withheld(named: Collection[tuple[DiscoveredDevice, DeviceSpec]], reported: bool) -> dict[str, str]:
    """Return a dict from address to reason, for virtual functions that must not be offered to servers now.

    ``named`` has pairs of a device and the device_spec that matches it. A virtual function of a vGPU card is not
    offered until an operator sets its vGPU type. If ``reported`` is True (devices are reported to Placement), all
    offered functions of one card have the same vGPU type, because the card is one resource provider. This is the type
    that most functions of the card have. If several types are equally frequent, it is the one with the lowest number.
    """
    found = {one['address']: text for one, _spec in named if (text := problem(one.get(VGPU_TYPE))) is not None}
    if not reported:
        return found
    cards: dict[str, list[DiscoveredDevice]] = {}
    for one, _spec in named:
        if one.get(VGPU_TYPE) and one.get('parent_addr'):
            cards.setdefault(str(one['parent_addr']), []).append(one)
    for card, functions in cards.items():
        counted = Counter(one[VGPU_TYPE] for one in functions)
        main = min(counted, key=lambda vgpu_type: (-counted[vgpu_type], vgpu_type))
        found.update(
            (one['address'], _other(card, one[VGPU_TYPE], main)) for one in functions if one[VGPU_TYPE] != main
        )
    return found


def _other(card: str, vgpu_type: int, main: int) -> str:
    return (
        f'its {FILE} is {vgpu_type}, but the Placement provider of card {card} is for type {main}: '
        'set the same type on all functions of the card'
    )
