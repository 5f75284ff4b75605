// What the page does when its connection breaks. Gradio would load the page anew, and what was typed
// would be lost. Here a request that got no answer is sent again, a stream that broke ends as if its
// answers were complete, and the page asks how the race stands until it has ended. A page that
// nobody sees ends its stream itself, and asks once it is seen again.
const SILENCE = 45000; // ms after which a stream that says nothing is broken; it speaks every 15 s
const STALE = 10000; // ms after which a race that shows nothing new is asked for
const LOST = "The connection is lost. What runs goes on; the page tries again every second.";
const send = window.fetch.bind(window);
let missed = false; // whether the board may have missed a view since the last race began
let leave = () => {}; // ends the stream that is open
let session = ""; // as gradio named it

const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));
const boardNow = () => document.querySelector(".dd-board");
const racing = () => ["waiting", "preparing", "racing"].includes(boardNow()?.dataset.phase);

function tell(lost) {
  const alert = document.querySelector(".dd-alert");
  if (!alert || (!lost && alert.textContent !== LOST)) return;
  alert.textContent = lost ? LOST : "";
}

// Sends until there is an answer.
async function sendAgain(target, options) {
  for (;;) {
    try {
      const answer = await send(target, options);
      tell(false);
      return answer;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      tell(true);
      await wait(1000);
    }
  }
}

// What gradio takes for the end of every answer that it waits for, none of them changed.
const END = ['{"msg":"process_completed","success":true,"output":{"data":[]}}', '{"msg":"close_stream"}'];

function ending(controller) {
  missed = true;
  for (const message of END) controller.enqueue(new TextEncoder().encode(`data: ${message}\n\n`));
  controller.close();
  setTimeout(lookAgain);
}

function lookAgain() {
  if (!document.hidden) press("look");
}

async function read(reader) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("silence")), SILENCE);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

// The stream of answers, which never fails.
async function sound(request) {
  const opened = await send(request).catch((error) => error);
  if (request.signal.aborted) return new Response(""); // as below
  const reader = opened.ok ? opened.body.getReader() : null;
  leave = () => reader?.cancel();
  const text = new TextDecoder();
  let tail = "";
  async function next(controller) {
    if (!reader) throw new Error("There is no stream.");
    const { done, value } = await read(reader);
    if (!done) {
      tail = tail.slice(-200) + text.decode(value, { stream: true });
      if (tail.includes('"session_not_found":true')) throw new Error("The server knows no stream.");
      controller.enqueue(value);
    } else if (tail.includes('"msg":"close_stream"')) {
      controller.close();
    } else {
      throw new Error("The stream ended too early.");
    }
  }
  const body = new ReadableStream({
    async pull(controller) {
      try {
        await next(controller);
      } catch (error) {
        // Gradio ends the stream when the page is left, and would tell the console of an error.
        if (request.signal.aborted) controller.close();
        else ending(controller);
      }
    },
    cancel: () => reader?.cancel(),
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

window.fetch = (target, options) => {
  const address = new URL(target.url ?? target, document.baseURI).pathname;
  if (address.endsWith("/queue/data")) return sound(new Request(target, options));
  const asked = /\/queue\/join$|\/run\/predict$/.test(address);
  if (asked) session ||= JSON.parse(options.body).session_hash;
  return asked ? sendAgain(target, options) : send(target, options);
};

document.addEventListener(
  "click",
  (event) => {
    if (event.target.closest?.("#run, #continue, #load, #again, #underload")) missed = false;
  },
  true,
);
setInterval(() => {
  if (!racing()) missed = false;
  else if (missed || Date.now() - (boardNow().drawn ?? 0) > STALE) lookAgain();
}, 500);
document.addEventListener("visibilitychange", () => {
  if (!racing()) return;
  if (document.hidden) leave();
  else if (missed) lookAgain();
});
// Gradio's own sign of life is not renewed after it broke.
setInterval(() => press("here"), 60000);
