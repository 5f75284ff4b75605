"""What gradio keeps of visitors who have left, on gradio's own queue."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import gradio
import httpx
import pytest
from gradio.queueing import Queue
from gradio.routes import App

from page.uncollected import forget

# gradio's own statistics of calls use what pandas no longer wants.
pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")

JOIN, STREAM = "/gradio_api/queue/join", "/gradio_api/queue/data"


class Page:
    """A page with one queued function, which waits until it may answer."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

        async def answer(text: str) -> str:
            await self.may_answer.wait()
            return text

        with gradio.Blocks() as demo:
            gradio.api(answer, api_name="answer", concurrency_limit=None)
        demo.queue()
        self.queue: Queue = demo._queue
        app = App.create_app(demo)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://testserver"
        )

    async def join(self, session: str) -> None:
        body: dict[str, Any] = {"data": [session], "fn_index": 0, "session_hash": session}
        (await self.client.post(JOIN, json=body)).raise_for_status()

    async def collected(self, session: str) -> str:
        """What the session's stream tells."""
        return (await self.client.get(STREAM, params={"session_hash": session})).text

    def kept(self) -> set[str]:
        """The sessions of which anything is kept."""
        return {*self.queue.pending_messages_per_session, *self.queue.pending_event_ids_session}

    async def idle(self) -> None:
        while self.queue.event_ids_to_events or any(self.queue.active_jobs):
            await asyncio.sleep(0.01)


def on_a_page(check: Callable[[Page], Awaitable[None]]) -> None:
    async def run() -> None:
        page = Page()
        page.queue.start()
        async with asyncio.timeout(20), page.client:
            await check(page)
        page.queue.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(run())


def test_answers_go_with_the_visitor_who_left_them_and_others_stay() -> None:
    """The page grew by 7 kB for each visitor who asked and did not listen, up to 2,000 of them."""

    async def check(page: Page) -> None:
        page.may_answer.set()
        for session in ("gone.1", "gone.2", "here.1"):
            await page.join(session)
        await page.idle()
        assert page.kept() == {"gone.1", "gone.2", "here.1"}
        forget(page.queue, "gone")
        assert page.kept() == {"here.1"}
        assert "process_completed" in await page.collected("here.1")

    on_a_page(check)


def test_a_call_that_still_runs_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """Its answer would find no session to go to."""

    async def check(page: Page) -> None:
        await page.join("gone.1")
        while not any(page.queue.active_jobs):
            await asyncio.sleep(0.01)
        forget(page.queue, "gone")
        page.may_answer.set()
        await page.idle()
        assert page.kept() == set()
        await page.join("gone.1")
        assert "process_completed" in await page.collected("gone.1")

    on_a_page(check)
    assert "Traceback" not in "".join(capfd.readouterr())
