"""The exceptions and warnings that graphport raises, and how their messages are rendered.

Every message has three parts: what happened, in the user's words; where, as the user's own file and
line; what to write instead. The parts are kept apart on the exception (`what`, `where`, `fix`) and
rendered in one place. Text is built only when an error is raised.
"""

from __future__ import annotations

import html as _html
import pickle
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphport.source import Location


class ExportError(Exception):
    """Base of everything graphport raises on purpose."""

    code = "GP000"

    def __init__(
        self, what: str, *, where: Location | str | None = None, fix: str | Iterable[str] = ()
    ) -> None:
        self.what = what
        self.where = where
        self.fix = [fix] if isinstance(fix, str) else list(fix)
        # Not super(): an error that is also of a user's own class must not run its initialiser.
        Exception.__init__(self, str(self))

    def __reduce__(self) -> tuple[object, ...]:
        """For another process: the text and the parts, without what cannot be sent there."""
        kinds = (c for c in type(self).__mro__ if globals().get(c.__name__) is c)
        parts = {name: value for name, value in vars(self).items() if _can_pickle(value)}
        return _rebuild_error, (next(kinds), self.args), parts

    def add_location(self, where: Location | None) -> None:
        """Say where it happened, unless that is known."""
        if self.where is None:
            self.where = where
            self.args = (str(self),)

    def __str__(self) -> str:
        """As it can be printed: names in it may come from elsewhere."""
        return escape_terminal(self.render())

    def render(self) -> str:
        lines = [f"{type(self).code} {self.what}"]
        if self.where is not None:
            lines.append(f"  at   {self.where}")
        lines.extend(f"  fix  {line}" for line in self.fix)
        return "\n".join(lines)


def _rebuild_error(kind: type[ExportError], args: tuple[object, ...]) -> ExportError:
    """An error of a class, whatever its initialiser takes."""
    return kind.__new__(kind, *args)


def _can_pickle(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  whatever an object of the user's raises
        return False
    return True


class UserError(ExportError):
    """The program, its inputs or its specification is at fault."""

    code = "GP100"


class InputError(UserError, TypeError):
    """What was passed to export is not something that can be captured."""

    code = "GP101"


class SpecError(UserError, ValueError):
    """`dynamic_shapes` does not fit the inputs."""

    code = "GP110"


class ConstraintViolationError(UserError, ValueError):
    """The program needs more of its input sizes than `dynamic_shapes` promises."""

    code = "GP111"
    questions: tuple[str, ...] = ()
    """What the program asked of its sizes, and was answered as the example has it."""
    places: tuple[Location, ...] = ()
    """Where it asked."""

    def render(self) -> str:
        lines = [f"{type(self).code} {self.what}"]
        if self.where is not None:
            lines.append(f"  at   {self.where}")
        if self.fix:
            lines.append("Suggested fixes:")
            lines.extend(f"  {line}" for line in self.fix)
        return "\n".join(lines)


class DataDependentError(UserError, RuntimeError):
    """Python needed the value of a tensor, which capture does not know."""

    code = "GP120"


class MutationError(UserError, RuntimeError):
    """A change of a tensor that cannot be written as a new value."""

    code = "GP130"


class ShapeError(UserError, RuntimeError):
    """An operator received sizes, dtypes or arguments that it cannot take."""

    code = "GP140"


class ForwardError(UserError):
    """The user's own code raised; the cause is the user's exception with its own traceback."""

    code = "GP150"


class ExpressionError(UserError, ValueError):
    """A text that is not an expression of sizes."""

    code = "GP160"


class NoDataError(UserError, RuntimeError):
    """The numbers of a tensor that has none were asked for."""

    code = "GP170"


class WeightsError(UserError, ValueError):
    """Weights that do not fit the model that they are given for; all of them are named."""

    code = "GP171"


class StrictError(UserError):
    """Something that a single trace cannot prove to be sound (`strict=True`)."""

    code = "GP180"


class UsageError(UserError):
    """A command line that asks for something that is not there, or that cannot be read."""

    code = "GP190"


class GraphError(UserError, RuntimeError):
    """A graph that cannot be rewritten as asked."""

    code = "GP195"


class PartitionError(UserError, RuntimeError):
    """A graph that cannot be spread over the devices as asked."""

    code = "GP196"


class CaptureWarning(UserWarning):
    """Something that a single trace cannot prove to be sound."""


class SizeWarning(CaptureWarning):
    """An ONNX file that is not for all sizes that `dynamic_shapes` allows."""


class UnsupportedError(ExportError):
    """Something that graphport cannot capture yet, or never will."""

    code = "GP200"


class MissingLoweringError(UnsupportedError):
    """Operators that no ONNX lowering is known for; `operators` has their names."""

    code = "GP201"

    def __init__(self, operators: Iterable[str], lines: Iterable[str], opset: int) -> None:
        self.operators = list(operators)
        self.lines = list(lines)
        first = self.operators[0]
        super().__init__(
            f"no ONNX lowering for {', '.join(self.operators)} at opset {opset}",
            fix=f'register one: @gp.onnx.lowering("{first.replace(".", "::", 1)}")',
        )

    def render(self) -> str:
        head, *rest = super().render().splitlines()
        return "\n".join([head, *(f"  at   {line}" for line in self.lines), *rest])


class MissingPackageError(ExportError, ImportError):
    """Something that needs an optional package which is not installed."""

    code = "GP210"


class VerificationError(ExportError):
    """A program that breaks its own rules."""

    code = "GP300"


class ValidationError(VerificationError):
    """Two expressions that differ; `counterexample` has values of the symbols at which they do."""

    code = "GP310"

    def __init__(
        self,
        what: str,
        *,
        where: Location | str | None = None,
        fix: str | Iterable[str] = (),
        counterexample: Mapping[str, int | float | bool] | None = None,
    ) -> None:
        self.counterexample = dict(counterexample or {})
        super().__init__(what, where=where, fix=fix)


class MismatchError(VerificationError):
    """An ONNX model that does not give what eager gives; `report` says where."""

    code = "GP320"

    def __init__(self, report: object) -> None:
        self.report = report
        super().__init__(f"the ONNX model differs from eager\n{report}")


class SessionError(ExportError, RuntimeError):
    """ONNX Runtime failed to load a model, or to run it."""

    code = "GP330"


class RequirementError(SessionError):
    """A model was stopped by an assertion of its program; `node` says which."""

    code = "GP331"

    def __init__(self, node: str) -> None:
        self.node = node
        super().__init__(f"the model {node}, which does not hold for these inputs")


class UndecidedError(VerificationError):
    """Neither a proof nor a counterexample was found with bounded effort."""

    code = "GP311"


class SerializationError(ExportError):
    """A file that cannot be written or read."""

    code = "GP400"


class StageError(UserError, RuntimeError):
    """A program that cannot be cut into stages, or a batch that cannot be split, as asked."""

    code = "GP520"


class PipelineError(ExportError, RuntimeError):
    """A stage of a pipeline that has died, raised or does not answer.

    `stage` and `rank` are its numbers, `modules` what it computes; `trace` has the end of its own
    traceback if it raised.
    """

    code = "GP521"

    def __init__(
        self,
        what: str,
        *,
        where: Location | str | None = None,
        fix: str | Iterable[str] = (),
        stage: int | None = None,
        rank: int | None = None,
        modules: str = "",
        trace: Iterable[str] = (),
    ) -> None:
        self.stage, self.rank, self.modules = stage, rank, modules
        self.trace = list(trace)
        super().__init__(what, where=where, fix=fix)

    def render(self) -> str:
        head, *rest = super().render().splitlines()
        return "\n".join([head, *(f"  |  {line}" for line in self.trace), *rest])


class InternalError(ExportError):
    """A fault in graphport itself."""

    code = "GP900"

    def render(self) -> str:
        return super().render() + "\n  This is a bug in graphport: please report it with the code."


# Escapes untrusted text for terminals, Markdown and HTML.
#
# Names of modules, keys of inputs and stack traces may come from a file, and hold whatever its
# author liked. A function per kind of output lets it be read and not act. JSON escapes by itself.

# Control characters but the tab and the end of a line; what changes the direction of writing or is
# not seen; what ends a line for some readers; halves of characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_LINE_BREAKS = re.compile("[\t\n]")
_MARKUP = re.compile(r"(?<=\])(?=[(:])|(?=`)")


def escape_terminal(text: str) -> str:
    r"""Several lines for a terminal.

    >>> print(escape_terminal("\x1b[31mred\x1b[0m\n"), end="")
    \x1b[31mred\x1b[0m
    """
    return _CONTROL.sub(_escape_match, text)


def escape_line(text: str) -> str:
    r"""A part of one line.

    >>> print(escape_line("two\nlines"))
    two\nlines
    """
    return _LINE_BREAKS.sub(_escape_match, escape_terminal(text))


def escape_markdown(text: str) -> str:
    """Text of Markdown: no HTML, no links, no code.

    >>> print(escape_markdown("<script> [here](javascript:x) f32[2]"))
    &lt;script&gt; [here]\\(javascript:x) f32[2]
    """
    return _MARKUP.sub(r"\\", _html.escape(escape_terminal(text), quote=False))


def escape_html(text: str) -> str:
    """Text of HTML, also within the quotes of an attribute.

    >>> escape_html("<b>")
    '&lt;b&gt;'
    """
    return _html.escape(escape_terminal(text))


def _escape_match(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape", "surrogatepass").decode("ascii")
