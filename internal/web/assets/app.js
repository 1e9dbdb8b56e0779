// The script of the web page. Without it every page works, but shows changes only after a reload, and times in UTC.
"use strict";
(() => {
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

  // localTimes shows the times below root in the viewer's zone. The title keeps the time in UTC.
  function localTimes(root) {
    for (const t of root.querySelectorAll("time[datetime]")) {
      const at = new Date(t.getAttribute("datetime"));
      if (isNaN(at)) continue;
      t.title = t.textContent;
      t.textContent = format.format(at);
    }
  }

  // morph makes an element like another one and keeps all nodes that stay, so that focus and selection survive.
  function morph(from, to) {
    for (const a of [...from.attributes]) if (!to.hasAttribute(a.name)) from.removeAttribute(a.name);
    for (const a of to.attributes) if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
    const keyed = new Map();
    for (const c of from.children) if (c.dataset && c.dataset.key) keyed.set(c.dataset.key, c);
    let at = from.firstChild;
    for (const want of [...to.childNodes]) {
      const known = want.dataset && want.dataset.key && keyed.get(want.dataset.key);
      if (known && known !== at) from.insertBefore(known, at);
      const have = known || at;
      if (have && have.nodeName === want.nodeName && (known || !(have.dataset && have.dataset.key))) {
        if (have.nodeType !== Node.ELEMENT_NODE) { if (have.data !== want.data) have.data = want.data; }
        else morph(have, want);
        at = have.nextSibling;
      } else {
        from.insertBefore(want, at);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  const pill = document.getElementById("connection");
  function show(text, kind) {
    if (!pill || pill.textContent === text) return;
    pill.textContent = text;
    pill.className = "pill " + kind;
    pill.hidden = false;
  }

  // refresh fetches the live parts of this page. One request is under way at a time, and none after a logout.
  let busy = false, again = false;
  const logout = new AbortController();
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do {
        again = false;
        const reply = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "error", signal: logout.signal });
        if (!reply.ok) throw new Error(reply.statusText);
        const doc = new DOMParser().parseFromString(await reply.text(), "text/html");
        localTimes(doc);
        for (const part of doc.querySelectorAll("[data-live]")) {
          const here = document.getElementById(part.id);
          if (here && !here.contains(document.activeElement?.closest("input,select,textarea"))) morph(here, part);
        }
        select();
      } while (again);
      show(source && source.readyState === EventSource.OPEN ? "live" : "every 5 s", "ok");
    } catch {
      if (!logout.signal.aborted) show("not connected", "bad");
    }
    busy = false;
  }

  // An event means that something changed. If too many browsers have a stream, this one asks every 5 s instead.
  let source = null, timer = 0;
  function connect() {
    if (source || document.hidden || !document.querySelector("[data-live]")) return;
    source = new EventSource(document.querySelector(".brand").href + "events"); // the root, below the prefix of a proxy
    source.onmessage = refresh;
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return show("not connected", "bad");
      source = null;
      refresh();
      timer = setTimeout(connect, 5000);
    };
  }
  function disconnect() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }
  document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);

  // The session ends before the browser leaves this page. A request in between would be refused.
  document.querySelector('form[action$="/logout"]')?.addEventListener("submit", () => {
    disconnect();
    logout.abort();
  });

  // A filter applies while the viewer types.
  for (const form of document.querySelectorAll("form[data-auto]")) {
    form.classList.add("auto");
    let wait = 0;
    form.addEventListener("input", () => {
      clearTimeout(wait);
      wait = setTimeout(() => {
        const query = new URLSearchParams([...new FormData(form)].filter(([, v]) => v !== ""));
        history.replaceState(null, "", form.getAttribute("action") + (query.size ? "?" + query : ""));
        refresh();
      }, 200);
    });
  }

  // The check box in a table's head selects all rows of the page. Live updates can add and remove rows.
  function selection(form) {
    const rows = () => [...form.querySelectorAll("tbody input[type=checkbox]")];
    const update = () => {
      const boxes = rows(), all = form.querySelector("[data-all]"), n = boxes.filter((b) => b.checked).length;
      all.checked = n > 0 && n === boxes.length;
      all.indeterminate = n > 0 && n < boxes.length;
      const text = n + " selected:", note = form.querySelector("[data-selected]");
      if (note.textContent !== text) note.textContent = text;
      for (const b of form.querySelectorAll("button")) b.disabled = n === 0;
    };
    form.addEventListener("change", (e) => {
      if (e.target.matches("[data-all]")) for (const b of rows()) b.checked = e.target.checked;
      update();
    });
    return update;
  }
  const selections = new Map();
  function select() {
    for (const form of document.querySelectorAll("form[data-select]")) {
      if (!selections.has(form)) selections.set(form, selection(form));
      selections.get(form)();
    }
  }
  select();

  localTimes(document);
  connect();
})();
