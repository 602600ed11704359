"""ImageMeta: the metadata of an image, with typed properties.

Example:
    image = ImageMeta.from_dict({'id': uuid, 'disk_format': 'qcow2', 'properties': {'hw_disk_bus': 'virtio'}})
    image.properties.get('hw_disk_bus')
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Self

from kilonova import errors
from kilonova.objects import cpuset, fields
from kilonova.objects.base import KilonovaObject, register
from kilonova.objects.image_properties import LEGACY_NAMES, PROPERTIES

SYSMETA_PREFIX = 'image_'
# Fields of an image that its servers store in their system metadata, in addition to the image's properties.
SYSMETA_MEMBERS = ('min_ram', 'min_disk', 'disk_format', 'container_format', 'size')
# Limits: characters of all properties of an image, characters of a property's name, the largest number, NUMA cells.
MOST_TEXT, MOST_NAME, MOST_NUMBER, MOST_CELLS = 65536, 255, 0x7FFFFFFF, 1024


class InvalidImageProperty(errors.Invalid):
    """Error 400: a property of the image is malformed."""

    msg_fmt = "Invalid image metadata. Property '%(name)s': %(reason)s"


@register
class ImageMetaProps(KilonovaObject):
    """The properties of an image.

    Properties that the image does not have are not set; ``get`` reads them with a default.
    """

    VERSION = '1.43'
    fields = dict(PROPERTIES)

    @classmethod
    def convert_known(cls, properties: Mapping[str, str]) -> dict[str, Any]:
        """Return {field: primitive value} for image properties, without making an object.

        Older names of properties are converted. Unknown and malformed properties are left out.
        """
        values: dict[str, Any] = {}
        for key, value in properties.items():
            name = LEGACY_NAMES.get(key, key)
            if name in cls.fields and (name == key or name not in properties):
                values[name] = value
        with contextlib.suppress(InvalidImageProperty):
            values.update(_numa(properties))
        if traits := _traits(properties):
            values['traits_required'] = traits
        found: dict[str, Any] = {}
        for name, value in values.items():
            field = cls.fields[name]
            with contextlib.suppress(ValueError, TypeError):
                found[name] = field.to_primitive(cls, name, field.coerce(cls, name, value))
        return found

    @classmethod
    def from_dict(cls, properties: dict[str, Any]) -> Self:
        """Return the object for a dict of image properties.

        Older names of properties, ``hw_numa_cpus.N`` and ``trait:X=required`` are converted. Unknown properties are
        left out. Raises InvalidImageProperty if a value is malformed.
        """
        values: dict[str, Any] = {}
        for key, value in properties.items():
            name = LEGACY_NAMES.get(key, key)
            if name in cls.fields and value is not None and (name == key or name not in properties):
                values[name] = value
        values.update(_numa(properties))
        for name, value in values.items():
            _check_value(name, value)
        traits = _traits(properties)
        for trait in traits:
            if _TRAIT.fullmatch(trait) is None:
                raise InvalidImageProperty(name=f'trait:{trait[:MOST_NAME]}', reason='it is not a valid trait name')
        if traits:
            values['traits_required'] = traits
        self = cls()
        for name, value in values.items():
            try:
                self.load(((name, value),))
            except (ValueError, TypeError) as exc:
                raise InvalidImageProperty(name=name, reason=exc) from exc
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the properties that are set, as a dict of primitives in the names and forms that an image uses."""
        data = self.primitive_data()
        for index, cpus in enumerate(data.pop('hw_numa_cpus', ())):
            data[f'hw_numa_cpus.{index}'] = ','.join(str(cpu) for cpu in sorted(cpus))
        for index, memory in enumerate(data.pop('hw_numa_mem', ())):
            data[f'hw_numa_mem.{index}'] = str(memory)
        data.update({f'trait:{trait}': 'required' for trait in data.pop('traits_required', ())})
        return data

    def get(self, name: str, default: Any = None) -> Any:
        """Return a property, or the default if it is not set. Raises AttributeError if the property is unknown."""
        if f'_obj_{name}' in self.__dict__:
            return getattr(self, name)
        if name not in self.fields:
            raise AttributeError(f"{self.obj_name()} object has no attribute '{name}'")
        return default


# Properties of an image, either as an object with types or as the image service returns them.
Properties = ImageMetaProps | Mapping[str, Any]
# The object for an image without properties. All such images share this object, so it must not be changed.
NOTHING = ImageMetaProps()
_TRAIT = re.compile('[A-Z0-9_]{1,255}')


def check_texts(properties: Mapping[str, Any]) -> None:
    """Check the size and the characters of all properties of an image, including unknown ones.

    Unknown properties are checked, too, because they are sent with the server and are part of its domain XML. Raises
    InvalidImageProperty if there is too much text, or if the text has characters that XML cannot contain.
    """
    total = 0
    for name, value in properties.items():
        text = str(value)
        total += len(name) + len(text)
        if len(name) > MOST_NAME or total > MOST_TEXT:
            raise InvalidImageProperty(
                name=name[:MOST_NAME],
                reason=f'a name may have at most {MOST_NAME} characters, all properties together at most {MOST_TEXT}',
            )
        if not _fits_xml(name) or not _fits_xml(text):
            raise InvalidImageProperty(
                name=''.join(char if char.isprintable() else '?' for char in name),
                reason='its name or value contains control characters',
            )


def _fits_xml(text: str) -> bool:
    return text.isprintable() or all(
        char in '\t\n\r' or (unicodedata.category(char) not in ('Cc', 'Cs') and char not in '\ufffe\uffff')
        for char in text
    )


def _check_value(name: str, value: Any) -> None:
    """Raise InvalidImageProperty if a known property's value has control characters or is too large a number."""
    if isinstance(value, str) and any(unicodedata.category(char) == 'Cc' for char in value):
        raise InvalidImageProperty(name=name, reason='its value contains control characters')
    if isinstance(PROPERTIES[name], fields.IntegerField):
        try:
            number = int(value)
        except (ValueError, TypeError) as exc:
            raise InvalidImageProperty(name=name, reason=exc) from exc
        if abs(number) > MOST_NUMBER:
            raise InvalidImageProperty(name=name, reason=f'the number must be from -{MOST_NUMBER} to {MOST_NUMBER}')


def _traits(properties: Mapping[str, Any]) -> list[str]:
    return [
        key.removeprefix('trait:')
        for key, value in properties.items()
        if key.startswith('trait:') and value == 'required'
    ]


def _numa(properties: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {property: list} for hw_numa_cpus.0, .1 … and hw_numa_mem.0, .1 …, one list element for each NUMA cell.

    Raises InvalidImageProperty if the cells are not numbered from 0 without a gap, if there are more than MOST_CELLS
    cells, or if a value is malformed.
    """
    found: dict[str, list[Any]] = {}
    for name, parse in (('hw_numa_cpus', _cpus), ('hw_numa_mem', _mib)):
        numbers = [int(match[1]) for key in properties if (match := re.fullmatch(rf'{name}\.([0-9]{{1,9}})', key))]
        if not numbers:
            continue
        if sorted(numbers) != list(range(len(numbers))):
            raise InvalidImageProperty(name=name, reason='cells must be numbered from 0 without a gap')
        if len(numbers) > MOST_CELLS:
            raise InvalidImageProperty(name=name, reason=f'a guest may have at most {MOST_CELLS} cells')
        try:
            found[name] = parse([str(properties[f'{name}.{number}']) for number in range(len(numbers))])
        except ValueError as exc:
            raise InvalidImageProperty(name=name, reason=exc) from exc
    return found


def _cpus(texts: list[str]) -> list[set[int]]:
    """Return one set of CPU numbers for each text: ['0-3,^2', '4'] becomes [{0, 1, 3}, {4}]."""
    cells: list[set[int]] = []
    for text in texts:
        cells.append(cpuset.parse(text))
        # Limit the vCPU numbers of all cells together. Without a limit, an image could use up this process's memory.
        if sum(map(len, cells)) > 2 * cpuset.MOST:
            raise ValueError(f'the NUMA cells together list more than {2 * cpuset.MOST} vCPU numbers')
    return cells


def _mib(texts: list[str]) -> list[int]:
    found = [int(text) for text in texts]
    if any(not 0 <= number <= MOST_NUMBER for number in found):
        raise ValueError(f'a memory size in MiB must be from 0 to {MOST_NUMBER}')
    return found


@register
class ImageMeta(KilonovaObject):
    """The metadata of an image. ``size`` is in bytes, ``min_disk`` in GiB, ``min_ram`` in MiB."""

    VERSION = '1.8'
    fields = {
        'id': fields.UUIDField(),
        'name': fields.StringField(),
        'status': fields.StringField(),
        'visibility': fields.StringField(),
        'protected': fields.FlexibleBooleanField(),
        'checksum': fields.StringField(),
        'owner': fields.StringField(),
        'size': fields.IntegerField(),
        'virtual_size': fields.IntegerField(),
        'container_format': fields.StringField(),
        'disk_format': fields.StringField(),
        'created_at': fields.DateTimeField(nullable=True),
        'updated_at': fields.DateTimeField(nullable=True),
        'tags': fields.ListOfStringsField(),
        'direct_url': fields.StringField(),
        'min_ram': fields.IntegerField(),
        'min_disk': fields.IntegerField(),
        'properties': fields.ObjectField('ImageMetaProps'),
    }

    @classmethod
    def from_dict(cls, image: dict[str, Any] | None) -> Self:
        """Return the object for a dict of the image's fields.

        The key ``properties`` of the dict is a dict of the image's properties. Fields with null or empty values stay
        unset. Raises InvalidImageProperty if a property is malformed.
        """
        image = image or {}
        values = {
            name: image[name] for name in cls.fields if name != 'properties' and image.get(name) not in (None, '')
        }
        values['properties'] = ImageMetaProps.from_dict(image.get('properties') or {})
        self = cls()
        self.load(values.items())
        return self

    @classmethod
    def from_system_metadata(cls, system_metadata: Mapping[str, str | None], image_ref: str | None = None) -> Self:
        """Return the image of a server from the ``image_…`` entries of the server's system metadata.

        ``image_ref`` is the image's id. If it is None, the id is read from the system metadata, too.
        """
        kept = {
            key.removeprefix(SYSMETA_PREFIX): value
            for key, value in system_metadata.items()
            if key.startswith(SYSMETA_PREFIX)
        }
        image: dict[str, Any] = {name: kept.pop(name) for name in SYSMETA_MEMBERS if name in kept}
        image['id'] = image_ref or kept.pop('base_image_ref', None)
        image['properties'] = kept
        return cls.from_dict(image)

    def to_dict(self) -> dict[str, Any]:
        """Return the image as a plain dict, with its properties as a dict in the member ``properties``."""
        data = {name: value for name, value in self.primitive_data().items() if name != 'properties'}
        data['properties'] = self.properties.to_dict() if 'properties' in self else {}
        return data


def system_metadata(image: dict[str, Any]) -> dict[str, str]:
    """Return the entries of system metadata in which a server stores a copy of its image.

    ``image`` is a dict of the image's fields. Each property, and each of the fields ``min_ram``, ``min_disk``,
    ``disk_format`` and ``container_format``, becomes an entry ``image_<name>`` with a text value.
    """
    kept = {name: image[name] for name in SYSMETA_MEMBERS if name != 'size' and image.get(name) is not None}
    kept.update({name: value for name, value in (image.get('properties') or {}).items() if value is not None})
    if image.get('id'):
        kept.setdefault('base_image_ref', image['id'])
    return {f'{SYSMETA_PREFIX}{name}'[:255]: str(value)[:255] for name, value in kept.items()}
