"""What went wrong, as payloads tell it."""
from __future__ import annotations

import traceback
from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import register
from kilonova.objects.notifications.base import About, Payload


@register
class ExceptionPayload(Payload):
    """Where it was raised, its class, its text, the trace: for administrators, like the details of a fault."""

    VERSION = '1.1'
    fields = {
        'module_name': fields.StringField(),
        'function_name': fields.StringField(),
        'exception': fields.StringField(),
        'exception_message': fields.StringField(),
        'traceback': fields.StringField(nullable=True),
    }

    @classmethod
    def of(cls, about: About, *, error: BaseException, method: str | None = None) -> Self:
        """Of an exception in hand; ``method`` is the RPC method that it left."""
        frames = traceback.extract_tb(error.__traceback__)
        return cls.made({
            'module_name': type(error).__module__, 'function_name': frames[-1].name if frames else method or 'unknown',
            'exception': type(error).__name__, 'exception_message': str(error),
            'traceback': ''.join(traceback.format_exception(error))})

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Self:
        """Of what an operation row keeps of an error: {class, message, details}; the trace tells where it was."""
        return cls.made({
            'module_name': 'kilonova.errors', 'function_name': 'unknown', 'exception': record.get('class') or 'unknown',
            'exception_message': record.get('message') or '', 'traceback': record.get('details')})
