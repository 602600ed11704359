"""Tables: ``models.api`` of the API database, ``models.cell`` of a cell's (the same ones in cell0)."""
