// Scenarios of clients that must not do something.
import assert from "node:assert/strict";
import { cell, shows } from "./site.mjs";

// login asks for the token, refuses a wrong one, and returns to the page that was asked for.
export async function login(site) {
  const page = await (await site.context()).newPage();
  await page.goto(site.base + "/queue?name=live");
  assert.equal(new URL(page.url()).pathname, "/login");
  await page.fill("#token", "not the token, but as long");
  await page.getByRole("button", { name: "Log in" }).click();
  await shows(page, ".notice.bad", "This is not the token.");
  await page.fill("#token", site.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await shows(page, "h1", "live");
  assert.match(page.url(), /\/queue\?name=live&state=/);
  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL((u) => u.pathname === "/login");
  await page.goto(site.base + "/");
  assert.equal(new URL(page.url()).pathname, "/login");
  const reply = await fetch(site.base + "/api/v1/stats");
  assert.equal(reply.status, 401);
}

// logoutBesideEvents changes a queue when the session has ended and the browser still shows its page. The page must
// not ask for anything then: an answer with an error would be in its console.
export async function logoutBesideEvents(site) {
  const page = await site.login(), other = await site.login();
  for (const p of [page, other]) {
    await p.goto(site.base + "/");
    await shows(p, "#connection", "live");
  }
  await page.route("**/logout", async (route) => {
    await page.context().clearCookies(); // as the answer to the logout does
    for (const n of ["1", "2", "3"]) {
      await site.api("enqueue", { queue: "logout", payload: "x" });
      await cell(other, "logout", "ready", n); // so an event has been sent
    }
    await route.fulfill({ contentType: "text/html", body: "<h1>left</h1>" }); // a route can't answer with a redirect
  });
  await page.getByRole("button", { name: "Log out" }).click();
  await shows(page, "h1", "left");
}

// readOnly opens each page of a sidecar with access: read, and tries each change.
export async function readOnly(site, { jobs }) {
  const page = await site.login();
  await shows(page, ".who", "read-only");
  for (const path of ["/", "/queue?name=fails&state=dead", `/job?queue=fails&id=${jobs.dead}`, "/dead", "/dead?queue=fails", "/workers", "/tasks", "/config"]) {
    await page.goto(site.base + path);
    assert.equal(await page.locator("main form[method=post], main button[name=op], main a.danger").count(), 0, path + " offers a change");
  }
  const before = await site.stat("fails");
  const csrf = await page.locator("input[name=csrf_token]").first().inputValue();
  const job = { queue: "fails", id: jobs.dead };
  const forms = [{ op: "retry", ...job }, { op: "delete", ...job }, { op: "reclaim", ...job }, { op: "enqueue", ...job }, { op: "retry", queue: "fails", all: "1" },
    { op: "purge", queue: "fails", state: "dead", confirm: "fails" }, { op: "pause", queue: "fails" }, { op: "resume", queue: "fails" }, { op: "reload" }];
  for (const form of forms) {
    const reply = await page.request.post(site.base + "/do", { form: { csrf_token: csrf, ...form }, maxRedirects: 0 });
    assert.equal(reply.status(), 403, `${JSON.stringify(form)}: ${await reply.text()}`);
    const { op, id, all, confirm, ...fields } = form;
    const api = await site.post("/api/v1/" + op, JSON.stringify(id ? { ...fields, ids: [id] } : fields));
    assert.equal(api.status, 403, `${op}: ${api.text}`);
    assert.equal(JSON.parse(api.text).error.code, "forbidden");
  }
  const { ready, dead, paused } = await site.stat("fails");
  assert.deepEqual([ready, dead, paused], [before.ready, before.dead, before.paused]);
}

// rebinding opens the page by a name that leads to the loopback address, as DNS rebinding does.
export async function rebinding(site) {
  const context = await site.browser.newContext();
  const page = await context.newPage();
  for (const path of ["/", "/login", "/api/v1/stats", "/assets/app.js"]) {
    const reply = await page.goto(site.base.replace("127.0.0.1", "rebound.example") + path, { timeout: site.limit });
    assert.equal(reply.status(), 421, path);
  }
  await context.close();
}

// otherSite shows a page of another site, which has the sidecar's page in a frame and sends a form to it.
export async function otherSite(site) {
  const page = await site.login();
  const context = page.context(), evil = "http://evil.example/";
  const before = await site.stat("fails");
  const attacker = await site.browser.newContext({ storageState: await context.storageState() });
  await attacker.route(evil + "**", (route) => route.fulfill({ contentType: "text/html", body: `<iframe src="${site.base}/"></iframe>
    <form method="post" action="${site.base}/do"><input name="op" value="pause"><input name="queue" value="fails"><button>Win a prize</button></form>` }));
  const other = await attacker.newPage();
  other.setDefaultTimeout(site.limit);
  await other.goto(evil);
  assert.equal(await other.frameLocator("iframe").locator(".brand").count(), 0, "the page is in a frame");
  const [reply] = await Promise.all([other.waitForResponse((r) => r.url() === site.base + "/do"), other.getByRole("button").click()]);
  assert.ok([401, 403].includes(reply.status()), `the form of another site: ${reply.status()}`);
  assert.equal((await site.stat("fails")).paused, before.paused);
  await attacker.close();
}

// hostile opens jobs whose texts are HTML or no text.
export async function hostile(site, { jobs, html }) {
  const page = await site.login();
  await page.goto(`${site.base}/job?queue=hostile&id=${jobs.html}`);
  assert.equal(await page.locator("pre.content").first().textContent(), html);
  await shows(page, ".timeline", html);
  await shows(page, "dd", html);
  await page.goto(`${site.base}/job?queue=hostile&id=${jobs.bytes}`);
  await page.locator("pre.content.hex").waitFor();
  await page.goto(`${site.base}/job?queue=hostile&id=${jobs.bytes}&as=text`);
  await page.locator("pre.content").waitFor();
  for (const path of ["/queue?name=hostile&state=dead", "/queue?name=hostile&state=ready", "/dead?queue=hostile", `/queue?name=${encodeURIComponent(html)}`]) {
    await page.goto(site.base + path);
    await shows(page, "main", "<script>");
    assert.equal(await page.evaluate(() => window.ran), undefined, path);
    assert.equal(await page.locator("main script, main img").count(), 0, path);
  }
}
