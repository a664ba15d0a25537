"""`genesis-fn` from its first moment on. It stands outside of the package, since to import anything
of the package takes seconds."""

from __future__ import annotations

import signal


def main() -> int:
    """Import the command line and run it. Returns the exit status.

    Ctrl-C ends the process quietly also while the library is imported; what is imported could
    make another error of KeyboardInterrupt.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not ignored, as behind `nohup ... &`
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from genesis_fn.cli.main import main as run
    finally:
        signal.signal(signal.SIGINT, before)
    return run()
