"""ExceptionPayload: the payload of an error in notifications."""

from __future__ import annotations

import traceback
from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import register
from kilonova.objects.notifications.base import EventContext, Payload


@register
class ExceptionPayload(Payload):
    """Notification payload: an error with its class, text, origin and traceback.

    Only administrators may see these details, as with the details of a fault.
    """

    VERSION = '1.1'
    fields = {
        'module_name': fields.StringField(),
        'function_name': fields.StringField(),
        'exception': fields.StringField(),
        'exception_message': fields.StringField(),
        'traceback': fields.StringField(nullable=True),
    }

    @classmethod
    def of(cls, about: EventContext, *, error: BaseException, method: str | None = None) -> Self:
        """Return the notification payload of an exception; ``method`` is the RPC method that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        return cls.made(
            {
                'module_name': type(error).__module__,
                'function_name': frames[-1].name if frames else method or 'unknown',
                'exception': type(error).__name__,
                'exception_message': str(error),
                'traceback': ''.join(traceback.format_exception(error)),
            }
        )

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Self:
        """Return the notification payload of an error that an operation's row stores as {class, message, details}.

        Module and function of the error are not known; they are only in the traceback (``details``).
        """
        return cls.made(
            {
                'module_name': 'kilonova.errors',
                'function_name': 'unknown',
                'exception': record.get('class') or 'unknown',
                'exception_message': record.get('message') or '',
                'traceback': record.get('details'),
            }
        )
