"""The arguments of operations: one frozen dataclass for each kind of operation row, in the modules of this package.

The API and conductors store an object of one of these classes in an operation row. The operation's flow reads it:

    row = OperationRow.new(ctxt, 'reboot', server.uuid, RebootArguments(reboot_type='HARD'))
    kind = work.arguments(RebootArguments).reboot_type

The names of the attributes are the keys of the JSON in the column ``args``. This release must read rows of the release
before, and the release before must read the rows of this one. Therefore an attribute keeps its name, and a new
attribute has a default. ``base`` writes and reads the JSON, and ``kinds`` lists which kind of operation has which
class.
"""
