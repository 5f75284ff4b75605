"""What gradio holds of a session: it sets no bounds of its own, and forgets nothing for an hour."""

import os

import gradio as gr

# Else it keeps ten thousand events, and makes a table of all of them after each.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")


#: Seconds between two looks of gradio's queue for something to do. Its own are a thousandth: a page
#: that nobody uses took 3.9 % of a core with them, 1.0 % with these.
LOOK = 0.05


def let_rest(demo: gr.Blocks) -> None:
    """Have the page's queue look less often. It must be the queue that is served."""
    demo._queue.sleep_when_free = LOOK  # noqa: SLF001


class Sessions:
    """The sessions of one page. `demo` may get another queue before it is launched."""

    def __init__(self, demo: gr.Blocks) -> None:
        self._demo = demo

    def backlog(self, session: str) -> int:
        """Messages that the session's page has not taken yet."""
        waiting = self._demo._queue.pending_messages_per_session.get(session)  # noqa: SLF001
        return 0 if waiting is None else waiting.qsize()

    def forget(self, session: str) -> None:
        """Drop the values and messages of a page that is gone. It may come back as a new one."""
        queue, states = self._demo._queue, self._demo.state_holder  # noqa: SLF001
        with states.lock:
            states.session_data.pop(session, None)
            states.time_last_used.pop(session, None)
        queue.pending_event_ids_session.pop(session, None)
        messages = queue.pending_messages_per_session.get(session)
        while messages is not None and not messages.empty():  # it may be put into still
            messages.get_nowait()
