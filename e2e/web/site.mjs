// A sidecar's page and API, as the scenarios use them.
import assert from "node:assert/strict";

export const desktop = { width: 1280, height: 800 };
export const phone = { width: 390, height: 844 };

export class Site {
  constructor(browser, input) {
    Object.assign(this, { browser, base: input.base, direct: input.direct ?? input.base, token: input.token, limit: input.limit_ms, contexts: [], problems: [] });
  }

  // context returns a browser session whose pages must neither fail nor load something from another host.
  async context(options = {}) {
    const context = await this.browser.newContext({ viewport: desktop, ignoreHTTPSErrors: true, ...options });
    this.contexts.push(context);
    context.setDefaultTimeout(this.limit);
    context.on("request", (r) => {
      if (!r.url().startsWith(this.base + "/")) this.problems.push("a request to another host or path: " + r.url());
    });
    context.on("console", (m) => {
      const noTLS = this.base.startsWith("http:") && m.text().includes("Cross-Origin-Opener-Policy header has been ignored"); // what it needs TLS for
      if (m.type() === "error" && !noTLS) this.problems.push(`the console of ${m.page()?.url()}: ${m.text()}`); // also violations of the policy
    });
    context.on("weberror", (e) => this.problems.push("an exception: " + e.error().stack));
    context.on("dialog", (d) => { this.problems.push("a dialog: " + d.message()); d.dismiss(); });
    return context;
  }

  // login returns a page that is logged in.
  async login(options) {
    const page = await (await this.context(options)).newPage();
    await page.goto(this.base + "/login");
    await page.fill("#token", this.token);
    await Promise.all([page.waitForURL(this.base + "/"), page.getByRole("button", { name: "Log in" }).click()]);
    return page;
  }

  // api carries out an operation with the token, without a browser.
  async api(op, fields = {}) {
    const reply = await this.post("/api/v1/" + op, JSON.stringify(fields));
    assert.equal(reply.status, 200, `${op}: ${reply.text}`);
    return JSON.parse(reply.text);
  }

  // post sends a request with the token, without a browser.
  async post(path, body) {
    const reply = await fetch(this.direct + path, { method: "POST", body, redirect: "manual", headers: { Authorization: "Bearer " + this.token }, signal: AbortSignal.timeout(this.limit) });
    return { status: reply.status, text: await reply.text() };
  }

  // stat returns the numbers of a queue.
  async stat(queue) {
    return (await this.api("stats", { queue })).queues.find((q) => q.queue === queue) ?? {};
  }

  async close() {
    for (const context of this.contexts) await context.close();
    assert.deepEqual(this.problems, []);
  }
}

// cell waits until the overview shows a number of jobs, without a reload.
export async function cell(page, queue, state, want) {
  await page.locator(`tr[data-key="${queue}"] td.${state}`).getByText(want, { exact: true }).waitFor();
}

// shows waits until a page shows a text.
export async function shows(page, selector, text) {
  await page.locator(selector).filter({ hasText: text }).first().waitFor();
}
