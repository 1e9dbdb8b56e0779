// Scenarios of a page that a proxy serves.
import assert from "node:assert/strict";
import { Site, cell, shows } from "./site.mjs";

// behindProxies uses each page behind a proxy. It reports all that fail, because they have different reasons.
export async function behindProxies(site, input) {
  const failed = [];
  for (const proxy of input.proxies) {
    const one = new Site(site.browser, { ...input, ...proxy });
    try {
      await behindProxy(one, proxy);
    } catch (e) {
      failed.push(`${proxy.name}: ${e.message.split("\n").slice(0, 3).join(" ")}`);
    }
    try {
      await one.close();
    } catch (e) {
      failed.push(`${proxy.name}: ${one.problems.slice(0, 3).join("; ")}`);
    }
    console.log(`${proxy.name}: ${failed.some((f) => f.startsWith(proxy.name + ":")) ? "FAILS" : "works"}`);
  }
  console.log(`figure: ${input.proxies.length - new Set(failed.map((f) => f.split(":")[0])).size} of ${input.proxies.length} proxies work`);
  assert.deepEqual(failed, []);
}

// behindProxy logs in, changes something, and goes from page to page. No request leaves the prefix: see Site.
async function behindProxy(site, { base, name }) {
  const page = await (await site.context()).newPage();
  page.setDefaultTimeout(site.limit);
  await page.goto(base + "/queue?name=fails");
  assert.equal(page.url(), `${base}/login?next=${encodeURIComponent("/queue?name=fails")}`);
  for (const token of ["not the token, but as long", site.token]) {
    await page.fill("#token", token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.locator(token === site.token ? "main h1" : ".notice.bad").first().waitFor();
  }
  await page.waitForURL(base + "/queue?name=fails&state=dead");
  const cookies = await page.context().cookies();
  assert.deepEqual(cookies.map((c) => [c.path, c.secure]), [[new URL(base).pathname.replace(/\/$/, "") || "/", base.startsWith("https:")]]);

  await page.getByRole("button", { name: "Pause" }).click();
  await shows(page, ".notice.ok", "Paused.");
  await page.goto(base + "/");
  await shows(page, "#connection", "live");
  await page.evaluate(() => { window.notReloaded = true; });
  await site.api("enqueue", { queue: "mail", payload: "another one" });
  await cell(page, "mail", "ready", "2");
  await page.getByLabel("Name contains").fill("mai");
  await page.locator('tr[data-key="fails"]').waitFor({ state: "detached" });
  assert.equal(page.url(), base + "/?q=mai");
  assert.equal(await page.evaluate(() => window.notReloaded), true, "the page was loaded again");

  // The sidecar writes the links by its base_url, whatever the proxy is: one proxy with a prefix and one without follow all of them.
  const tabs = await page.locator("header nav a").allInnerTexts();
  for (const tab of name.startsWith("the page's nginx") ? tabs : tabs.slice(-1)) {
    await page.locator("header nav a").filter({ hasText: tab }).click();
    await page.locator("header nav a[aria-current]").filter({ hasText: tab }).waitFor();
    assert.ok(page.url().startsWith(base + "/"), page.url());
  }
  await page.goto(base + "/dead?queue=fails");
  await page.locator("th.reason a").first().click();
  await page.locator("#group th a").first().click();
  await page.locator("pre.content").first().waitFor();
  await page.getByRole("button", { name: "Retry" }).click();
  await shows(page, ".notice.ok", "Ready again: 1 job.");
  await page.goto(base + "/dead?queue=fails");
  await page.getByRole("button", { name: /^Retry .*the group no such user/ }).click();
  await shows(page, "#task", "done");

  const missing = await page.goto(base + "/no/such/page");
  assert.equal(missing.status(), 404);
  site.problems = site.problems.filter((p) => !/\/no\/such\/page: .*404/.test(p));
  if (name.startsWith("the page's")) {
    for (const path of ["/metrics", "/readyz"]) {
      assert.equal((await page.goto(base + path)).status(), 404, path + ", which needs no token");
      site.problems = site.problems.filter((p) => !p.includes(`${path}: `));
    }
    await page.goto(base + "/dead");
  }
  await page.getByRole("link", { name: "Queues" }).first().click();
  await page.waitForURL(base + "/");
  await page.getByRole("button", { name: "Log out" }).click();
  await page.waitForURL(base + "/login");
  await page.goto(base + "/");
  assert.equal(page.url(), base + "/login");
}
