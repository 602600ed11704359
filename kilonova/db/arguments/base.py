"""Base classes for the arguments of operations. ``Arguments`` converts the arguments to JSON and back.

    @dataclass(frozen=True, kw_only=True)
    class ShelveOffloadArguments(Arguments):
        shelving: bool = field(default=False, metadata=LEFT_OUT)

    ShelveOffloadArguments().stored()                           # {}
    ShelveOffloadArguments.read({'shelving': True}).shelving    # True

An attribute that is declared with ``LEFT_OUT`` is not written to the JSON while it has its default value. The other
base classes in this module declare attributes that the steps of several flows read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

# Envelope is a versioned object in its serialized form (see ``db.envelopes``). Image is the metadata of an image.
Envelope = dict[str, Any]
Image = dict[str, Any]

# An attribute with this metadata is not written to the JSON if it has its default value.
LEFT_OUT = MappingProxyType({'left_out': True})


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of an operation. This class itself is for kinds of operations without arguments.

    Each attribute of a subclass is a key of the JSON. An attribute without a default must be in each row. An attribute
    with a default may be missing in rows of the release before. All attributes are written to the JSON, except an
    attribute that is declared with ``LEFT_OUT`` and has its default value.

    Attributes:
        identity: Names of the attributes by which two operations of this kind are compared. If the attributes are
            equal, the operations do the same work, and one row is enough (see ``OperationRow.is_like``).
    """

    identity: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the arguments from the JSON object of a row. Keys that this class doesn't have are ignored.

        If a required key is missing, KeyError is raised only when its attribute is read. So the operation fails only
        at the step that needs the attribute, and its other steps can be undone.
        """
        made = object.__new__(cls)
        for one in fields(cls):
            if one.name in stored:
                object.__setattr__(made, one.name, stored[one.name])
            elif one.default is not MISSING:
                object.__setattr__(made, one.name, one.default)
        return made

    def stored(self) -> dict[str, Any]:
        """Return the JSON object for the row. A tuple becomes a list, because JSON has no tuples."""
        return {
            one.name: list(value) if isinstance(value, tuple) else value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default or one.metadata != LEFT_OUT
        }

    @property
    def is_complete(self) -> bool:
        """True if the JSON from which the arguments were read had a key for each attribute without a default value."""
        return all(one.name in vars(self) for one in fields(self))

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Raise KeyError if ``name`` is an attribute that was missing in the row's JSON, else AttributeError.

            Python calls this only for attributes that the object does not have.
            """
            raise KeyError(name) if name in self.__dataclass_fields__ else AttributeError(name)


ArgumentsT = TypeVar('ArgumentsT', bound=Arguments)


def narrowed(found: Arguments, cls: type[ArgumentsT]) -> ArgumentsT:
    """Return the arguments ``found`` unchanged, typed as ``cls`` for type checkers.

    Raises TypeError if ``found`` is not an object of ``cls``: then the operation is of another kind than expected.
    """
    if not isinstance(found, cls):
        raise TypeError(f'The operation has arguments of class {type(found).__name__}, not {cls.__name__}')
    return found


@dataclass(frozen=True, kw_only=True)
class ImageArguments(Arguments):
    """Base class of arguments with the metadata of the server's image, or None for a server without an image."""

    image: Image | None = None


@dataclass(frozen=True, kw_only=True)
class SpecArguments(Arguments):
    """Base class of arguments with the request spec for which the scheduler chooses a host."""

    request_spec: Envelope


@dataclass(frozen=True, kw_only=True)
class MigrationArguments(Arguments):
    """Base class of arguments with the uuid of a migration."""

    migration_uuid: str


@dataclass(frozen=True, kw_only=True)
class NewImageArguments(Arguments):
    """Base class of arguments with the id of the image to which the server's disk is uploaded."""

    image_id: str | None
