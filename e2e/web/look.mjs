// Scenarios of what the pages look like: accessibility, size, and pictures for the docs.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { desktop, phone } from "./site.mjs";

const addresses = ({ jobs, batch }) => ({
  overview: "/", queue: "/queue?name=fails&state=dead", job: `/job?queue=fails&id=${jobs.dead}`, bytes: `/job?queue=hostile&id=${jobs.bytes}`,
  dead: "/dead", schedules: "/schedules", deadOfQueue: "/dead?queue=fails", workers: "/workers", operations: "/tasks", config: "/config", sidecars: "/sidecars", check: "/check?run=1",
  batches: "/batches", batch: `/batch?id=${batch}`, cancelBatch: `/confirm?op=cancel_batch&batch=${batch}`,
  confirm: "/confirm?op=purge&queue=fails&state=dead", login: "/login", missing: "/nothing",
});

// The pages whose tables fit on a phone. The others scroll inside of their box.
const wholeTables = ["overview", "dead", "workers", "schedules"];

// The rules of axe that check colors. All others find the same in both color schemes.
const colors = { runOnly: { type: "rule", values: ["color-contrast", "link-in-text-block"] } };

// accessible runs axe on each page, on a desktop and on a phone. In the dark it runs the rules that check colors.
export async function accessible(site, input) {
  const axe = readFileSync(process.env.NODE_PACKAGES + "/node_modules/axe-core/axe.min.js", "utf8");
  const found = [];
  for (const [width, viewport] of Object.entries({ desktop, phone })) {
    const page = await site.login({ viewport, colorScheme: "light", reducedMotion: "reduce", bypassCSP: true }); // axe must not see colors that change, and the policy forbids it too
    for (const [name, address] of Object.entries(addresses(input))) {
      const reply = await page.goto(site.base + address);
      assert.equal(reply.status(), name === "missing" ? 404 : 200, name);
      await page.mouse.move(0, 0); // axe must see no row below the pointer
      await page.addScriptTag({ content: axe });
      for (const [colorScheme, rules] of Object.entries({ light: {}, dark: colors })) {
        const where = `${name}, ${width}, ${colorScheme}`;
        await page.emulateMedia({ colorScheme });
        const { violations, passes } = await page.evaluate((rules) => axe.run(rules), rules);
        assert.ok(passes.length > 0, where + ": axe checked nothing");
        for (const v of violations) found.push(`${where}: ${v.id}: ${v.help}: ${v.nodes.map((n) => n.html.slice(0, 150)).join(" ")}`);
        if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) found.push(where + ": it scrolls sideways");
        if (wholeTables.includes(name) && await page.evaluate(() => [...document.querySelectorAll(".scroll")].some((s) => s.scrollWidth > s.clientWidth))) {
          found.push(where + ": a table is wider than the screen");
        }
        console.log(`${where}: ${passes.length} rules of axe passed`);
      }
      await page.emulateMedia({ colorScheme: "light" });
    }
  }
  site.problems = site.problems.filter((p) => !/\/nothing: .*404/.test(p)); // Chromium reports the page itself
  assert.deepEqual(found, []);
}

// budget opens the overview with an empty cache.
export async function budget(site, { queues }) {
  const page = await site.login();
  await page.goto(site.base + "/"); // the sidecar has read the numbers of all queues
  await page.locator("#totals .card b").filter({ hasText: new RegExp("^" + thousands(queues)) }).first().waitFor();
  const cold = await (await site.context({ storageState: await page.context().storageState() })).newPage();
  const requests = [];
  const finished = (r) => requests.push(r);
  cold.on("requestfinished", finished);
  await cold.goto(site.base + "/");
  cold.off("requestfinished", finished); // the updates aren't part of the load
  let bytes = 0;
  for (const r of requests) {
    const { responseHeadersSize, responseBodySize } = await r.sizes();
    bytes += responseHeadersSize + responseBodySize;
  }
  const painted = await cold.evaluate(() => new Promise((resolve) => {
    new PerformanceObserver((l) => resolve(l.getEntries().at(-1).startTime)).observe({ type: "largest-contentful-paint", buffered: true });
  }));
  console.log(`figure: with ${queues} queues, the first load of the overview has ${(bytes / 1000).toFixed(1)} kB and is painted after ${painted.toFixed(0)} ms`);
  assert.ok(requests.length >= 3 && bytes > 0, `${requests.length} responses, ${bytes} bytes`);
  assert.ok(bytes <= 150_000, `the first load has ${bytes} bytes`);
}

// thousands formats a number as the page does.
const thousands = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");

// pictures writes the pictures of the docs into a directory. The address of the database, which is a path of this machine,
// isn't on them.
export async function pictures(site, { jobs, directory }) {
  for (const [name, address, viewport, colorScheme, end] of [
    ["overview", "/", desktop, "light", "#databases"], ["job", `/job?queue=webhooks&id=${jobs.picture}`, desktop, "dark", "footer"], ["phone", "/", phone, "light", "footer"],
  ]) {
    const page = await site.login({ viewport, colorScheme, locale: "en-GB", timezoneId: "UTC" });
    await page.goto(site.base + address);
    await page.locator("#connection").filter({ hasText: "live" }).waitFor();
    const { y } = await page.locator(end).boundingBox();
    const session = await page.context().newCDPSession(page);
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 80, clip: { x: 0, y: 0, width: viewport.width, height: Math.min(y, viewport.height), scale: 1 } });
    const image = Buffer.from(data, "base64");
    assert.ok(image.length <= 60_000, `${name} has ${image.length} bytes`);
    console.log(`${name}: ${image.length} bytes`);
    writeFileSync(`${directory}/web-${name}.webp`, image);
  }
}
