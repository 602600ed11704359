"""Field types of the versioned objects.

Types of oslo.versionedobjects are exported again under their own names. The enums contain the same words as in Nova.
Four types differ from the library's. Sets are serialised in a fixed order, so that equal objects have equal texts.
UUIDs are checked (the library only warns). Datetimes are parsed without regular expressions. Enums may accept other
spellings of a word (``amd64`` for ``x86_64``).

    fields = {'dev_type': fields.PciDeviceTypeField(), 'numa_node': fields.IntegerField(nullable=True)}
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from oslo_versionedobjects import fields as ovo

AutoTypedField = ovo.AutoTypedField
BaseEnumField = ovo.BaseEnumField
BooleanField = ovo.BooleanField
DictOfIntegersField = ovo.DictOfIntegersField
DictOfListOfStringsField = ovo.DictOfListOfStringsField
DictOfNullableStringsField = ovo.DictOfNullableStringsField
DictOfStringsField = ovo.DictOfStringsField
DictProxyField = ovo.DictProxyField
Field = ovo.Field
FlexibleBooleanField = ovo.FlexibleBooleanField
FloatField = ovo.FloatField
IPAddressField = ovo.IPAddressField
IPV4AddressField = ovo.IPV4AddressField
IPV6AddressField = ovo.IPV6AddressField
IntegerField = ovo.IntegerField
ListOfDictOfNullableStringsField = ovo.ListOfDictOfNullableStringsField
ListOfIntegersField = ovo.ListOfIntegersField
ListOfListsOfStringsField = ovo.ListOfListsOfStringsField
ListOfObjectsField = ovo.ListOfObjectsField
ListOfStringsField = ovo.ListOfStringsField
MACAddressField = ovo.MACAddressField
NonNegativeFloatField = ovo.NonNegativeFloatField
NonNegativeIntegerField = ovo.NonNegativeIntegerField
ObjectField = ovo.ObjectField
PCIAddressField = ovo.PCIAddressField
SensitiveStringField = ovo.SensitiveStringField
StringField = ovo.StringField
VersionPredicateField = ovo.VersionPredicateField


class Set(ovo.Set[Any]):
    """A set that is serialised as a sorted list."""

    def to_primitive(self, obj: Any, attr: str, value: set[Any]) -> tuple[object, ...]:
        """Return the elements in sorted order."""
        return super().to_primitive(obj, attr, sorted(value))  # type: ignore[arg-type]  # a list works, too


class SetOfIntegersField(AutoTypedField[set[int]]):
    """A field with a set of integers."""

    AUTO_TYPE = Set(ovo.Integer())


class SetOfStringsField(AutoTypedField[set[str]]):
    """A field with a set of strings."""

    AUTO_TYPE = Set(ovo.String())


class ListOfSetsOfIntegersField(AutoTypedField[list[set[int]]]):
    """A field with a list of sets of integers."""

    AUTO_TYPE = ovo.List(Set(ovo.Integer()))


_UUID = re.compile(ovo.UUID.PATTERN).match


class UUID(ovo.StringPattern[str]):
    """A UUID as text. A value that is not a UUID raises ValueError."""

    PATTERN = ovo.UUID.PATTERN

    def coerce(self, obj: object, attr: str, value: object) -> str:
        """Return the value as text; raises ValueError if it is no UUID."""
        text = value if isinstance(value, str) else str(value)
        if _UUID(text) is None:
            raise ValueError(f'A UUID is required in field {attr}, not {text!r}')
        return text


class UUIDField(AutoTypedField[str]):
    """A field with a UUID."""

    AUTO_TYPE = UUID()


class ListOfUUIDField(AutoTypedField[list[str]]):
    """A field with a list of UUIDs."""

    AUTO_TYPE = ovo.List(UUID())


class DateTime(ovo.DateTime):
    """A datetime with a time zone, serialised as ``YYYY-MM-DDTHH:MM:SSZ``.

    A datetime without a time zone, such as one from a database, counts as UTC.
    """

    def coerce(self, obj: object, attr: str, value: object) -> datetime.datetime:
        """Return the datetime for a datetime or an ISO text. Raises ValueError for any other value."""
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        elif not isinstance(value, datetime.datetime):
            raise ValueError(f'A datetime is required in field {attr}, not a {type(value).__name__}')
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value

    from_primitive = coerce

    def to_primitive(self, obj: object, attr: str, value: datetime.datetime) -> str:
        """Return the time in UTC as text, without fractions of a second."""
        if value.tzinfo is not datetime.UTC:
            value = value.astimezone(datetime.UTC)
        return f'{value:%Y-%m-%dT%H:%M:%S}Z'


class DateTimeField(AutoTypedField[datetime.datetime]):
    """A field with a datetime."""

    AUTO_TYPE = DateTime()


class NetworkModel(ovo.FieldType[list[dict[str, Any]]]):
    """The interfaces of a server: a list of VIF dicts, serialised as JSON text, as in instance_info_caches."""

    def coerce(self, obj: object, attr: str, value: object) -> list[dict[str, Any]]:
        """Return the list of VIFs for a list or its JSON text. Raises ValueError for any other value."""
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, list):
            raise ValueError(f'A list of VIFs is required in field {attr}, not a {type(value).__name__}')
        return value

    from_primitive = coerce

    def to_primitive(self, obj: object, attr: str, value: list[dict[str, Any]]) -> str:
        """Return the list as JSON text."""
        return json.dumps(value)


class NetworkModelField(AutoTypedField[list[dict[str, Any]]]):
    """A field with the interfaces of a server."""

    AUTO_TYPE = NetworkModel()


class WordList(ovo.Enum):
    """An enum that ignores upper and lower case, and accepts other spellings of its words."""

    def __init__(self, words: Collection[str], spellings: Mapping[str, str] | None = None) -> None:
        super().__init__(tuple(words))
        self._known = frozenset(words)
        self._spellings = dict(spellings or {})

    def coerce(self, obj: object, attr: str, value: object) -> str:
        """Return the word of the enum for a value, which may differ in upper and lower case or have another spelling.

        Raises ValueError if the value is no word of the enum.
        """
        if value in self._known:
            return str(value)
        word = str(value).lower()
        word = self._spellings.get(word, word)
        if word not in self._known:
            raise ValueError(f'Field value {value!r} of {attr} is invalid; it is one of {sorted(self._known)}')
        return word


def enum(name: str, words: Collection[str], spellings: Mapping[str, str] | None = None) -> type[BaseEnumField]:
    """Return a field class whose values are the given words.

    ``spellings`` is {other spelling: word}. Each word is also an attribute of the class: ``type-PCI`` is the attribute
    ``TYPE_PCI``.
    """
    # Each enum is a class with its own name, because the fingerprint of an object has the class names of its fields.
    kind = type(name, (WordList,), {})(words, spellings)
    constants = {re.sub(r'\W', '_', word).upper(): word for word in words}
    return type(f'{name}Field', (BaseEnumField,), {'AUTO_TYPE': kind, '__module__': __name__, **constants})


ARCHITECTURES = (
    'aarch64',
    'alpha',
    'armv6',
    'armv7l',
    'armv7b',
    'cris',
    'i686',
    'ia64',
    'lm32',
    'loongarch64',
    'm68k',
    'microblaze',
    'microblazeel',
    'mips',
    'mipsel',
    'mips64',
    'mips64el',
    'openrisc',
    'parisc',
    'parisc64',
    'ppc',
    'ppcle',
    'ppc64',
    'ppc64le',
    'ppcemb',
    'riscv64',
    's390',
    's390x',
    'sh4',
    'sh4eb',
    'sparc',
    'sparc64',
    'unicore32',
    'x86_64',
    'xtensa',
    'xtensaeb',
)
ArchitectureField = enum(
    'Architecture',
    ARCHITECTURES,
    {'i386': 'i686', 'i486': 'i686', 'i586': 'i686', 'amd64': 'x86_64', 'x86': 'i686', 'arm64': 'aarch64'},
)
HVTypeField = enum(
    'HVType',
    (
        'baremetal',
        'bhyve',
        'docker',
        'fake',
        'hyperv',
        'ironic',
        'kqemu',
        'kvm',
        'lxc',
        'lxd',
        'openvz',
        'parallels',
        'powervm',
        'qemu',
        'test',
        'uml',
        'vbox',
        'vmware',
        'vz',
        'xen',
        'zvm',
        'phyp',
    ),
)
VMModeField = enum('VMMode', ('hvm', 'xen', 'uml', 'exe'), {'pv': 'xen', 'hv': 'hvm', 'baremetal': 'hvm'})

BlockDeviceSourceTypeField = enum('BlockDeviceSourceType', ('blank', 'image', 'snapshot', 'volume'))
BlockDeviceDestinationTypeField = enum('BlockDeviceDestinationType', ('local', 'volume'))
BlockDeviceTypeField = enum('BlockDeviceType', ('cdrom', 'disk', 'floppy', 'fs', 'lun'))
BlockDeviceEncryptionFormatTypeField = enum('BlockDeviceEncryptionFormatType', ('plain', 'luks', 'luksv2'))

CPUAllocationPolicyField = enum('CPUAllocationPolicy', ('dedicated', 'shared', 'mixed'))
CPUThreadAllocationPolicyField = enum('CPUThreadAllocationPolicy', ('prefer', 'isolate', 'require'))
CPUEmulatorThreadsPolicyField = enum('CPUEmulatorThreadsPolicy', ('share', 'isolate'))
CPUModeField = enum('CPUMode', ('custom', 'host-model', 'host-passthrough', 'maximum'))
CPUMatchField = enum('CPUMatch', ('minimum', 'exact', 'strict'))
CPUFeaturePolicyField = enum('CPUFeaturePolicy', ('force', 'require', 'optional', 'disable', 'forbid'))

PciDeviceStatusField = enum(
    'PciDeviceStatus', ('available', 'claimed', 'allocated', 'removed', 'deleted', 'unavailable', 'unclaimable')
)
PciDeviceTypeField = enum('PciDeviceType', ('type-PCI', 'type-PF', 'type-VF', 'vdpa', 'mdev'))
PCINUMAAffinityPolicyField = enum('PCINUMAAffinityPolicy', ('required', 'legacy', 'preferred', 'socket'))
InstancePowerStateField = enum(
    'InstancePowerState', ('pending', 'running', 'paused', 'shutdown', 'crashed', 'suspended')
)
HypervisorDriverField = enum('HypervisorDriver', ('libvirt', 'xenapi', 'vmwareapi', 'ironic', 'hyperv'))
ExternalEventNameField = enum(
    'ExternalEventName',
    (
        'network-changed',
        'network-vif-plugged',
        'network-vif-unplugged',
        'network-vif-deleted',
        'volume-extended',
        'power-update',
        'accelerator-request-bound',
        'volume-reimaged',
    ),
)
ExternalEventStatusField = enum('ExternalEventStatus', ('failed', 'completed', 'in-progress'))
MigrationTypeField = enum('MigrationType', ('migration', 'resize', 'live-migration', 'evacuation'))


class Json(ovo.FieldType[Any]):
    """Any value that JSON can represent, unchanged."""

    def coerce(self, obj: object, attr: str, value: object) -> Any:
        """Return the value unchanged."""
        return value


class JsonField(AutoTypedField[Any]):
    """A field with any value that JSON can represent."""

    AUTO_TYPE = Json()


class ResourceClass(ovo.StringPattern[str]):
    """A resource class of Placement: a standard name or ``CUSTOM_…``."""

    PATTERN = r'^[A-Z0-9_]{1,255}$'

    def coerce(self, obj: object, attr: str, value: object) -> str:
        """Return the name; raises ValueError if it is malformed."""
        if not isinstance(value, str) or re.match(self.PATTERN, value) is None:
            raise ValueError(f'Malformed resource class {value!r} in field {attr}')
        return value


class ResourceClassField(AutoTypedField[str]):
    """A field with a resource class of Placement."""

    AUTO_TYPE = ResourceClass()


SCALARS = (
    ovo.String,
    ovo.Integer,
    ovo.NonNegativeInteger,
    ovo.Float,
    ovo.NonNegativeFloat,
    ovo.Boolean,
    ovo.UUID,
    ovo.MACAddress,
    ovo.PCIAddress,
    UUID,
    ResourceClass,
    Json,
)


def type_of(field: ovo.Field[Any]) -> Any:
    """Return the type object that converts a field's values."""
    return field._type  # noqa: SLF001 - the library has no other way to it


def is_plain(field: ovo.Field[Any]) -> bool:
    """Return whether the field's values are serialised unchanged."""
    return isinstance(type_of(field), SCALARS)


def holds_plain(field: ovo.Field[Any]) -> bool:
    """Return whether the field is a list, set or dict whose elements are serialised unchanged."""
    element = getattr(type_of(field), '_element_type', None)
    return element is not None and is_plain(element)
