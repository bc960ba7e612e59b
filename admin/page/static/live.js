// Keeps an open page up to date: the server sends the page again when it has changed, and the script replaces the
// parts that differ. Without this script, reload the page.
"use strict";
(() => {
  const note = document.getElementById("live");
  if (!note || !window.EventSource) return;
  const say = (text) => { if (note.textContent !== text) note.textContent = text; };
  let source = null, before = new Map();

  const replace = (html) => {
    let swapped = false;
    const next = new DOMParser().parseFromString(html, "text/html");
    for (const fresh of next.querySelectorAll("[data-live]")) {
      const old = document.getElementById(fresh.id);
      const text = fresh.innerHTML;
      if (!old || before.get(fresh.id) === text) continue;
      const first = !before.has(fresh.id) && old.innerHTML === text;
      before.set(fresh.id, text);
      if (first || old.matches(":hover") && window.getSelection().toString() !== "") continue;
      swap(old, fresh);
      swapped = true;
    }
    if (swapped) document.dispatchEvent(new Event("updated"));
  };

  // Keeps open what the reader has opened, the focus, and text that the reader has typed.
  const swap = (old, fresh) => {
    const open = new Set([...old.querySelectorAll("details[open][id]")].map((d) => d.id));
    const closed = new Set([...old.querySelectorAll("details[id]:not([open])")].map((d) => d.id));
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    if (active && active.matches("input, select, textarea")) return;
    if ([...old.querySelectorAll("input:not([type=hidden])")].some((i) => i.value !== i.defaultValue)) return;
    const at = active ? [...old.querySelectorAll("a, button, summary, [tabindex]")].indexOf(active) : -1;
    old.className = fresh.className;
    old.replaceChildren(...[...fresh.childNodes].map((n) => document.importNode(n, true)));
    for (const d of old.querySelectorAll("details[id]")) {
      if (open.has(d.id)) d.open = true;
      if (closed.has(d.id)) d.open = false;
    }
    if (at >= 0) {
      const now = [...old.querySelectorAll("a, button, summary, [tabindex]")][at];
      if (now) now.focus({ preventScroll: true });
    }
  };

  const open = () => {
    if (source) return;
    say("page connects");
    source = new EventSource("/ui/live?page=" + encodeURIComponent(location.pathname + location.search));
    source.onopen = () => say("page is live");
    source.onmessage = (e) => { say("page is live"); replace(e.data); };
    source.onerror = () => {
      const gone = source.readyState === EventSource.CLOSED;
      say(gone ? "page is not live: reload it" : "page is not live: connection lost, trying again");
      if (gone) source = null;
    };
  };
  const close = () => { if (source) { source.close(); source = null; say(""); } };
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", () => { if (!document.hidden) open(); });
  if (!document.hidden) open();
})();
