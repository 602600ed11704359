"""Tables of the API database (``models.api``) and of the cell databases including cell0 (``models.cell``)."""
