"""The program that renders chat templates, in a process of its own: `python -I -S chat_worker.py
PATH...`, with the folders of jinja2 and its dependency.

Templates come with models, from anybody. jinja2's sandbox keeps them from Python's internals, but
not from loops that never end, numbers of a billion digits and texts of a billion copies. The
process has little time for each template and little memory, may write no file and start no process.
It reads requests and writes replies, each eight bytes of length and a JSON object, until its input
ends. It imports nothing of this library, so that it starts in a moment.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import resource
import signal
import struct
import sys
from types import TracebackType
from typing import IO, Any

SECONDS = 2.0  # of the processor, for a template
MEMORY = 1 << 29  # bytes
LARGEST_TEXT = 1 << 24  # characters


class TimeUp(BaseException):
    """A template took all its time. No Exception, which expressions of templates may catch."""


class Refused(Exception):
    """What `raise_exception(message)` of a template raises."""


def send(out: IO[bytes], value: dict[str, Any]) -> None:
    """Write a message."""
    text = json.dumps(value).encode()
    out.write(struct.pack("<Q", len(text)) + text)
    out.flush()


def receive(source: IO[bytes]) -> dict[str, Any] | None:
    """Read a message; None at the end."""
    head = source.read(8)
    if len(head) < 8:
        return None
    (size,) = struct.unpack("<Q", head)
    text = source.read(size)
    return json.loads(text) if len(text) == size else None


@functools.lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    """The template, in the environment that transformers gives to chat templates."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
    import jinja2.utils

    class Generation(jinja2.ext.Extension):
        """{% generation %} ... {% endgeneration %}, which marks what the model says: its body."""

        tags = {"generation"}
        written: list[str]  # the pieces of the text so far, which `rendered` makes
        spans: list[list[int]]

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> str:
            text = caller()
            start = sum(map(len, self.written))
            self.spans.append([start, start + len(text)])
            return text

    class Namespace(jinja2.utils.Namespace):
        """A namespace without attributes of Python's."""

        def __init__(*args: Any, **attributes: Any) -> None:
            self, *rest = args
            for name in dict(*rest, **attributes):
                check_attribute(name)
            jinja2.utils.Namespace.__init__(self, *rest, **attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check_attribute(name)
            super().__setitem__(name, value)

    def check_attribute(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may have no attribute {name!r}")

    def make_dict(*args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def raise_exception(message: object) -> None:
        raise Refused(message)

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    known: dict[str, Any] = environment.globals
    known.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: datetime.datetime.now().strftime(form),
        dict=make_dict,
        namespace=Namespace,
    )
    return environment.from_string(template)


def rendered(template: str, variables: dict[str, Any]) -> tuple[str, list[list[int]]]:
    """The text of a template, and the spans of it that stand between its generation tags."""
    program = compiled(template)
    (marks,) = [e for e in program.environment.extensions.values() if "generation" in e.tags]
    pieces: list[str] = []
    marks.written, marks.spans = pieces, []
    size = 0
    for piece in program.generate(**variables):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_TEXT:
            raise OverflowError(f"the text has more than {LARGEST_TEXT:,} characters")
    return "".join(pieces), marks.spans


def line_of(error: BaseException) -> int | None:
    """The line of the template that an error comes from."""
    line = getattr(error, "lineno", None)  # of a syntax error
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_globals
        if "__jinja_exception__" in names:  # a frame that jinja2 made to show the line
            line = trace.tb_lineno
        elif "__jinja_template__" in names:
            line = names["__jinja_template__"].get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def reply(request: dict[str, Any]) -> dict[str, Any]:
    """{"text", "generated"}, or {"error", "line", "refused"}."""
    try:
        with time_limited():
            text, spans = rendered(request["template"], request["variables"])
            return {"text": text, "generated": spans}
    except Refused as error:
        return {"error": str(error)[:1000], "line": line_of(error), "refused": True}
    except TimeUp as error:
        return {"error": f"takes more than {SECONDS:.0f} seconds", "line": line_of(error)}
    except MemoryError as error:
        return {"error": f"needs more than {MEMORY >> 20} MiB", "line": line_of(error)}
    except RecursionError as error:
        return {"error": "is nested too deeply, or calls itself", "line": line_of(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}", "line": line_of(error)}


@contextlib.contextmanager
def time_limited() -> Any:
    """Raises TimeUp in a block that takes too long. What does not return to Python in time, such as
    the product of large numbers, ends the process."""

    def up(*_: object) -> None:
        raise TimeUp

    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + int(SECONDS) + 2, hard))
    before = signal.signal(signal.SIGPROF, up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def main() -> None:
    """Answer requests until the input ends."""
    sys.path.extend(sys.argv[1:])
    compiled("")  # imports jinja2 before the limits hold
    import jinja2

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    for kind, limit in [
        (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ]:  # fmt: skip
        with contextlib.suppress(OSError, ValueError):  # a system may know less
            resource.setrlimit(kind, (limit, limit))
    source, out = sys.stdin.buffer, sys.stdout.buffer
    send(out, {"jinja2": jinja2.__version__})
    while (request := receive(source)) is not None:
        send(out, reply(request))


if __name__ == "__main__":
    main()
