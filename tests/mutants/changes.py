"""Small changes of a source file, each of which should make a test fail.

    for change in changes(text):
        broken = change.apply(text)

A change replaces one expression or statement; what it stands on keeps its line. Left alone: docstrings, annotations,
decorators, log lines, messages of errors, f-strings and texts of several words, blocks for type checkers. Neither are,
as a test could only repeat them or nobody could notice: ``__repr__`` and ``__str__``, the numbers that a name of
capitals stands for (pauses, limits of a batch), the names of threads (``name=``, ``daemon=``), ``strict=`` of ``zip``
and ``repr=`` of a field.
"""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: '!=',
    ast.NotEq: '==',
    ast.Lt: '<=',
    ast.LtE: '<',
    ast.Gt: '>=',
    ast.GtE: '>',
    ast.Is: 'is not',
    ast.IsNot: 'is',
    ast.In: 'not in',
    ast.NotIn: 'in',
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: '-',
    ast.Sub: '+',
    ast.Mult: '//',
    ast.FloorDiv: '*',
    ast.Div: '*',
    ast.Mod: '*',
    ast.BitOr: '&',
    ast.BitAnd: '|',
    ast.LShift: '>>',
    ast.RShift: '<<',
}
NAMES = {'min': 'max', 'max': 'min', 'any': 'all', 'all': 'any'}
# Calls for logs, and for texts and types only.
LOGGERS = ('LOG', 'LOGGER', 'logging', 'warnings')
# Functions that say how something is shown; arguments that nobody notices, by the name of what is called.
SHOWN = ('__repr__', '__str__')
UNSEEN = {
    'Thread': ('name', 'daemon'),
    'ThreadPoolExecutor': ('thread_name_prefix',),
    'zip': ('strict',),
    'field': ('repr',),
    'spawn': ('name',),
}
WORDS = ('_', 'cast', 'TypeVar', 'ParamSpec', 'TypedDict', 'NamedTuple')


@dataclass(frozen=True)
class Change:
    """``old`` (text from offset ``start`` on) becomes ``new``; ``lines``: first that of what is changed, then those of
    the statement around it; ``function`` is the name within the file ('' at its top)."""

    kind: str
    function: str
    start: int
    old: str
    new: str
    lines: tuple[int, ...]

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def changes(text: str) -> list[Change]:
    """All changes of a file, in its order; a few give a file that can't be compiled (``compiles``)."""
    return [change for change in _Walk(text).found if change.new != change.old]


def compiles(text: str) -> bool:
    """Whether Python takes it. Of all changes of the tree this would take minutes."""
    try:
        compile(text, '<mutant>', 'exec', dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Walk(ast.NodeVisitor):
    def __init__(self, text: str) -> None:
        self._text = text
        # Offsets of ast are in bytes of UTF-8.
        self._lines = [line.encode() for line in text.splitlines(keepends=True)]
        self._starts = list(itertools.accumulate((len(line.decode()) for line in self._lines), initial=0))
        self._names: list[str] = []
        self._statement: ast.stmt | None = None
        self.found: list[Change] = []
        self.visit(ast.parse(text))

    # What is walked.

    def visit(self, node: ast.AST) -> None:
        before = self._statement
        if isinstance(node, ast.stmt):
            self._statement = node
        super().visit(node)
        self._statement = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in SHOWN:
            return
        self._names.append(node.name)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self._body(node.body)
        self._names.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._body(node.body)
        self._names.pop()

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not text and not isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not self._is_setting([node.target], node.value):
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """The parts of an f-string have no places of their own."""

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._replace('removed raise', node, 'pass')

    # What is changed.

    def visit_If(self, node: ast.If) -> None:
        if 'TYPE_CHECKING' not in ast.dump(node.test):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._between('comparison', left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self._between('boolean', left, right, 'or' if isinstance(node.op, ast.And) else 'and')
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
        if type(node.op) in OPERATORS and not text:
            self._between('operator', node.left, node.right, OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace('not', node, f'({self._source(node.operand)})')
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace('constant', node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            self._replace('constant', node, str(node.value + 1))
        elif isinstance(node.value, str) and node.value and ' ' not in node.value and node.lineno == node.end_lineno:
            self._replace('constant', node, repr(f'XX{node.value}'))

    def visit_Return(self, node: ast.Return) -> None:
        # True and False change as constants: None in place of False is as good.
        constant = node.value.value if isinstance(node.value, ast.Constant) else ''
        if node.value is not None and constant is not None and not isinstance(constant, bool):
            self._replace('return', node.value, 'None')
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        while isinstance(called, ast.Attribute):
            called = called.value
        if isinstance(called, ast.Name) and called.id in LOGGERS:
            return
        if isinstance(node.value, ast.Call):
            self._replace('removed call', node, 'pass')
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets) and self._names:
            self._replace('removed statement', node, 'pass')
        slots = any(isinstance(target, ast.Name) and target.id == '__slots__' for target in node.targets)
        if not slots and not self._is_setting(node.targets, node.value):
            self.generic_visit(node)

    @staticmethod
    def _is_setting(targets: list[ast.expr], value: ast.expr) -> bool:
        """``PAUSE = 30``, ``ONE, OTHER = 5, 60.0``, ``LIMIT = 4 * 1024``."""
        named = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        numbers = (ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
        return all(isinstance(one, ast.Name) and one.id.isupper() for one in named) and all(
            isinstance(part, numbers) or (isinstance(part, ast.Constant) and type(part.value) in {int, float})
            for part in ast.walk(value)
        )

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace('removed statement', node, 'pass')
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace('removed statement', node, 'pass')

    def visit_Break(self, node: ast.Break) -> None:
        self._replace('loop', node, 'continue')

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace('loop', node, 'break')

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ''
        if name in WORDS:
            return
        called = node.func.attr if isinstance(node.func, ast.Attribute) else name
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in UNSEEN.get(called, ())]
        if name in NAMES:
            self._replace('name', node.func, NAMES[name])
        for one, two in itertools.pairwise(node.args):
            if not any(isinstance(arg, ast.Starred) for arg in (one, two)) and ast.dump(one) != ast.dump(two):
                start, end = self._start(one), self._end(two)
                between = self._text[self._end(one) : self._start(two)]
                if '(' not in between and ')' not in between:
                    self._add('swapped arguments', one, start, end, f'{self._source(two)}{between}{self._source(one)}')
        for keyword in node.keywords:
            # True and False change as constants: None in place of False is as good.
            if (
                keyword.arg is not None
                and not isinstance(keyword.value, ast.JoinedStr)
                and not (
                    isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, (bool, type(None)))
                )
            ):
                self._replace('argument', keyword.value, 'None')
        self.generic_visit(node)

    # Places.

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())

    def _source(self, node: ast.expr) -> str:
        return self._text[self._start(node) : self._end(node)]

    def _negate(self, test: ast.expr) -> None:
        # Of comparisons and negations the opposite is made already.
        if not isinstance(test, ast.UnaryOp) and not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            self._replace('condition', test, f'(not ({self._source(test)}))')

    def _between(self, kind: str, left: ast.expr, right: ast.expr, new: str) -> None:
        """The operator between two expressions: without the brackets and the white space around it."""
        start, end = self._end(left), self._start(right)
        text = self._text[start:end]
        if '#' in text or '\\' in text:
            return
        before = len(text) - len(text.lstrip(' \n)'))
        after = len(text) - len(text.rstrip(' \n('))
        self._add(kind, right, start + before, end - after, new)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self._add(kind, node, self._start(node), self._end(node), new)

    def _add(self, kind: str, node: ast.expr | ast.stmt, start: int, end: int, new: str) -> None:
        whole = self._statement or node
        body = getattr(whole, 'body', None)
        last = body[0].lineno - 1 if body else whole.end_lineno or whole.lineno
        lines = (node.lineno, *range(whole.lineno, max(last, whole.lineno) + 1))
        self.found.append(
            Change(kind, '.'.join(self._names), start, self._text[start:end], new, tuple(dict.fromkeys(lines)))
        )
