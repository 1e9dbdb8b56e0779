// Runs scenarios in one browser: node main.mjs JSON. The tests in Go start it.
import { createRequire } from "node:module";
import { Site } from "./site.mjs";
import * as access from "./access.mjs";
import * as change from "./change.mjs";
import * as look from "./look.mjs";
import * as proxy from "./proxy.mjs";

const { chromium } = createRequire(process.env.NODE_PACKAGES + "/")("playwright-core");
const input = JSON.parse(process.argv[2]);
const all = { ...access, ...change, ...look, ...proxy };

// Every other name leads nowhere, except the one that a DNS rebinding would use, and that of the proxies.
const rules = "MAP rebound.example 127.0.0.1, MAP ops.example.com 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1";
const browser = await chromium.launch({
  executablePath: input.chromium,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=" + rules],
  timeout: input.limit_ms,
});
try {
  for (const name of input.scenarios) {
    console.log("scenario " + name);
    const site = new Site(browser, input);
    await all[name](site, input);
    await site.close();
  }
} finally {
  await browser.close();
}
