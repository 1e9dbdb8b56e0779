// Scenarios of an operator who changes something.
import assert from "node:assert/strict";
import { cell, phone, shows } from "./site.mjs";

// live watches a queue on one page, and pauses and resumes it on another. A worker takes its jobs.
export async function live(site) {
  const overview = await site.login();
  await site.api("enqueue", { queue: "live", payload: "first" });
  await cell(overview, "live", "done", "1");
  await overview.evaluate(() => { window.notReloaded = true; });

  const queue = await overview.context().newPage();
  await queue.goto(site.base + "/queue?name=live");
  await queue.getByRole("button", { name: "Pause" }).click();
  await shows(queue, ".notice.ok", "Paused.");
  await shows(overview, 'tr[data-key="live"]', "paused");
  for (let i = 0; i < 3; i++) await site.api("enqueue", { queue: "live", payload: "while paused" });
  await cell(overview, "live", "ready", "3");
  await queue.getByRole("button", { name: "Resume" }).click();
  await shows(queue, ".notice.ok", "Resumed.");
  await cell(overview, "live", "ready", "0");
  await cell(overview, "live", "done", "4");
  await overview.locator('tr[data-key="live"] .pill.warn').waitFor({ state: "detached" });
  await shows(overview, "#connection", "live");
  assert.equal(await overview.evaluate(() => window.notReloaded), true, "the page was loaded again");
}

// find finds a job by its id. A key finds nothing, and the page reports it.
export async function find(site) {
  const { job } = await site.api("enqueue", { queue: "found", payload: '{"to":"ada"}', key: "welcome-ada" });
  const page = await site.login();
  await page.getByLabel("Job id").fill(job.id);
  await page.getByRole("button", { name: "Find" }).click();
  await page.waitForURL((u) => u.pathname === "/job");
  await shows(page, "dd", "welcome-ada");
  await shows(page, "pre.content.json", '"to": "ada"');
  const missing = await page.request.get(site.base + "/search?id=welcome-ada");
  assert.notEqual(missing.status(), 200);
  assert.match(await missing.text(), /welcome-ada/);
}

// findInQueue finds one of many jobs by its key, and dead ones by a text.
export async function findInQueue(site, { bulk, keys }) {
  const page = await site.login();
  await page.goto(site.base + "/queue?name=bulk&state=dead");
  const search = async (by, what) => {
    await page.getByLabel("Search by").selectOption(by);
    await page.getByLabel("Search for").fill(what);
    await page.getByRole("button", { name: "Search", exact: true }).click();
  };
  await search("key", `user-${keys - 1}`);
  await page.waitForURL((u) => u.pathname === "/job");
  await shows(page, "dd", `user-${keys - 1}`);
  await page.goBack();
  await search("text", '"user":77'); // 77, and 770 to 779
  await shows(page, "p.note", bulk > 10_000 ? "there are more jobs to search" : "11 jobs found among");
  await search("key", "nobody");
  await shows(page, "p.note", "0 jobs found");
}

// changeJob gives a job that waits another priority and another time.
export async function changeJob(site) {
  const { job } = await site.api("enqueue", { queue: "changed", payload: "x" });
  const page = await site.login();
  await page.goto(`${site.base}/job?queue=changed&id=${job.id}`);
  await page.getByLabel("Priority").fill("7");
  await page.locator("#delay").selectOption({ index: 2 });
  await page.getByRole("button", { name: "Change" }).click();
  await shows(page, "h1 .state", "scheduled");
  const [view] = (await site.api("peek", { queue: "changed", ids: [job.id] })).jobs;
  assert.deepEqual([view.priority, view.state], [7, "scheduled"]);
}

// retryFew retries one dead job, and then a group.
export async function retryFew(site) {
  const page = await site.login();
  await page.goto(site.base + "/queue?name=fails&state=dead");
  await page.locator("tbody th a").last().click(); // the one that died first
  await page.getByRole("button", { name: "Retry" }).click();
  await shows(page, ".notice.ok", "Ready again: 1 job.");
  await shows(page, "h1 .state", "ready");
  const { ready, dead } = await site.stat("fails");
  assert.deepEqual({ ready, dead }, { ready: 1, dead: 5 });

  await page.goto(site.base + "/dead?queue=fails");
  await page.getByRole("button", { name: /^Retry .*the group no such user/ }).click();
  await shows(page, "#task", "done");
  await shows(page, "#task dd", "3 jobs");
  const after = await site.stat("fails");
  assert.deepEqual([after.ready, after.dead], [4, 2]);
}

// selectJobs selects dead jobs with the keyboard and on a phone. One of them is gone by then, which the page names.
export async function selectJobs(site, { jobs }) {
  const page = await site.login();
  await page.goto(site.base + "/queue?name=chosen&state=dead");
  const status = page.locator("[data-selected]"), retry = page.getByRole("button", { name: "Retry", exact: true });
  await shows(page, "[data-selected]", "0 selected:");
  assert.equal(await retry.isDisabled(), true);
  await page.getByLabel("Select job " + jobs.chosen).focus();
  await page.keyboard.press("Space");
  await shows(page, "[data-selected]", "1 selected:");
  await page.getByLabel("Select all jobs of this page").focus();
  await page.keyboard.press("Space");
  await shows(page, "[data-selected]", "4 selected:");
  await page.keyboard.press("Space");
  await shows(page, "[data-selected]", "0 selected:");
  assert.equal(await status.getAttribute("role"), "status");

  const small = await site.login({ viewport: phone });
  await small.goto(site.base + "/queue?name=chosen&state=dead");
  await small.getByLabel("Select all jobs of this page").check();
  await site.api("delete", { queue: "chosen", ids: [jobs.chosen] });
  await small.getByRole("button", { name: "Retry", exact: true }).click();
  await small.waitForURL((u) => u.pathname === "/task");
  await shows(small, "#task dd", "3 jobs");
  await shows(small, "#task tr", "it does not exist any more");
  const { ready, dead } = await site.stat("chosen");
  assert.deepEqual([ready, dead], [3, 0]);

  await page.goto(site.base + "/?q=chosen");
  await page.getByLabel("Select queue chosen").check();
  await page.getByRole("button", { name: "Resume" }).click();
  await shows(page, ".notice.ok", "Resumed. 1 queue.");
  await page.locator('tr[data-key="chosen"] .pill.warn').waitFor({ state: "detached" });
}

// fourteenDays shows the hours of all sidecars on the first visit.
export async function fourteenDays(site) {
  const page = await site.login();
  for (const path of ["/", "/queue?name=old"]) {
    await page.goto(site.base + path);
    await page.getByRole("img", { name: "jobs per hour: up to 1200 in, up to 900 out, up to 3 failed attempts" }).waitFor();
    await page.getByRole("img", { name: "ready jobs in the last 14 days: 1 to 300" }).waitFor();
    await page.getByRole("img", { name: /^run time of 95% of the runs in the last 14 days/ }).waitFor();
  }
}

// ownName changes something as a user with a name. The page shows who it was.
export async function ownName(site, { ada }) {
  const page = await (await site.context()).newPage();
  await page.goto(site.base + "/login");
  await page.fill("#token", ada);
  await page.getByRole("button", { name: "Log in" }).click();
  await shows(page, ".who", "ada can change");
  await site.api("enqueue", { queue: "named", payload: "x" });
  await page.goto(site.base + "/queue?name=named");
  await page.getByRole("button", { name: "Pause" }).click();
  await shows(page, ".notice.ok", "Paused.");
  await page.goto(site.base + "/tasks");
  const rows = await page.locator("#changes tbody tr").allInnerTexts();
  assert.match(rows[0], /ada\s+pause\s+named/);
  assert.match(rows[1], /no name\s+enqueue\s+named/);
}

// retryAll retries all dead jobs of a queue, and uses other pages until that has ended.
export async function retryAll(site, { bulk }) {
  const page = await site.login();
  await page.goto(site.base + "/queue?name=bulk&state=dead");
  const other = await page.context().newPage();
  if (bulk > 1000) { // it asks
    await page.getByRole("link", { name: "Retry all" }).click();
    await page.getByRole("button", { name: "Retry the jobs" }).click();
  } else {
    await page.getByRole("button", { name: "Retry all" }).click();
  }
  await page.waitForURL((u) => u.pathname === "/task");
  const progress = page.locator("#task"), done = page.locator("#task .pill.ok");
  let answered = 0, last = "";
  for (let ended = false; !ended;) {
    ended = await done.count() > 0;
    for (const path of ["/", "/queue?name=bulk&state=dead", "/dead", "/tasks"]) {
      const reply = await other.goto(site.base + path);
      assert.equal(reply.status(), 200, path);
      answered++;
    }
    const now = (await progress.innerText()).replace(/\s+/g, " ");
    if (now !== last) console.log(now);
    last = now;
    assert.ok(!now.includes("ended early"), now);
  }
  console.log(`figure: ${answered} other pages were answered while ${bulk} jobs were retried`);
  assert.match(last, new RegExp(`Changed ${String(bulk).replace(/\B(?=(\d{3})+$)/g, " ")} jobs`));
  const { ready, dead, approx } = await site.stat("bulk");
  assert.equal(dead, 0);
  if (!approx) assert.equal(ready, bulk); // an estimate can be 10 s old
}
