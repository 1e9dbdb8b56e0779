'use strict'

const assert = require('node:assert/strict')
const net = require('node:net')
const path = require('node:path')
const { test } = require('node:test')
const { Job } = require('../lib/job')

const qsidecar = require('..')
const { Client, NotConnected, LeaseLost, TooLarge, UnknownOutcome } = qsidecar
const { queueName, client, folder, run, deferred, quiet } = require('./helpers')

test('a job is enqueued, claimed and acked', async (t) => {
  const c = client(t)
  const queue = queueName()
  const stored = await c.enqueue(queue, { to: 'ada' }, { key: 'k', priority: 3, headers: { lang: 'en' }, maxAttempts: 4, timeoutMs: 60_000 })
  assert.deepEqual(await c.enqueue(queue, {}, { key: 'k' }), { id: stored.id, duplicate: true, state: 'ready' })
  const [job] = await c.claim(queue)
  assert.deepEqual(job.payload, { to: 'ada' })
  assert.deepEqual([job.id, job.priority, job.headers, job.key, job.attempt, job.maxAttempts, job.timeoutMs], [stored.id, 3, { lang: 'en' }, 'k', 1, 4, 60_000])
  assert.ok(job.enqueuedAt instanceof Date && job.fence > 0)
  await job.ack()
  assert.ok(job.settled)
  await assert.rejects(job.ack(), LeaseLost)
  assert.deepEqual(await c.claim(queue), [])
})

test('payloads: JSON values, bytes, nothing', async (t) => {
  const c = client(t)
  const queue = queueName()
  const values = ['Zoë \ud83d\ude00 \u0000', 17, null, [1, { a: null }], true]
  for (const value of values) await c.enqueue(queue, value)
  for (const value of values) {
    const [job] = await c.claim(queue)
    assert.deepEqual(job.payload, value)
    await job.ack()
  }
  for (const bytes of [Buffer.from([0xff, 0, 0xfe]), new Uint8Array([104, 105]), Buffer.alloc(0)]) {
    await c.enqueue(queue, bytes)
    const [job] = await c.claim(queue)
    assert.deepEqual(job.raw, Buffer.from(bytes))
    if (bytes.length > 0) assert.throws(() => job.payload, { name: 'TypeError', message: /isn't JSON.*job\.raw has its bytes/ })
    await job.ack()
  }
})

test('jobs of a group run one at a time and in order', async (t) => {
  const c = client(t)
  const queue = queueName()
  const stored = [
    await c.enqueue(queue, 1, { group: 'é' }),
    ...(await c.enqueueMany([{ queue, payload: 2, group: 'é' }, { queue, payload: 3, group: 'é' }])),
  ]
  for (let n = 1; n <= 5; n++) {
    const [job] = await c.claim(queue, { waitMs: 3_600_000 })
    assert.deepEqual([job.id, job.payload], [stored[n - 1].id, n])
    assert.equal((await c.peek({ queue, ids: [job.id] }))[0].group, 'é')
    assert.deepEqual(await c.claim(queue), [], 'a second job of the group')
    if (n === 1) job.followUp(queue, 4, { group: 'é' })
    stored.push(...(await job.ack(n === 1 ? { enqueue: [{ queue, payload: 5, group: 'é' }] } : {})))
  }
  await assert.rejects(c.enqueue(queue, 1, { group: '' }), { code: 'bad_request', field: 'group' })
})

test('a second enqueue replaces the first one', async (t) => {
  const c = client(t)
  const queue = queueName()
  const first = await c.enqueue(queue, 1, { key: 'k', onConflict: 'replace' })
  assert.deepEqual(await c.enqueue(queue, 2, { key: 'k', onConflict: 'replace' }), { id: first.id, duplicate: false, state: 'ready', outcome: 'replaced' })
  const later = { queue, payload: 3, key: 'k', onConflict: 'debounce', delayMs: 2 }
  await assert.rejects(c.enqueueMany([{ ...later, debounceMaxMs: 1 }]), { code: 'bad_request', field: 'debounce_max_ms' })
  await c.enqueueMany([{ ...later, debounceMaxMs: 60_000 }])
  const [job] = await c.claim(queue, { waitMs: 3_600_000 })
  assert.equal(job.payload, 3)
  assert.deepEqual(await c.enqueue(queue, 4, { key: 'k', onConflict: 'replace' }), { id: first.id, duplicate: false, state: 'claimed', outcome: 'pending' })
  await job.ack()
  const [next] = await c.claim(queue, { waitMs: 3_600_000 })
  assert.equal(next.payload, 4)
  await next.ack()
  await c.enqueue(queue, 5, { key: 's', keyUntil: 'start' })
  await c.claim(queue, { waitMs: 3_600_000 })
  assert.equal((await c.enqueue(queue, 6, { key: 's', keyUntil: 'start' })).duplicate, false)
  await assert.rejects(c.enqueue(queue, 1, { key: 'k', onConflict: 'debounce' }), { code: 'bad_request', field: 'delay_ms' })
})

test('a job whose time to start is over does not start', async (t) => {
  const c = client(t)
  const queue = queueName()
  const past = new Date('2001-02-03')
  const dead = await c.enqueue(queue, 1, { startBefore: past })
  const [gone] = await c.enqueueMany([{ queue, payload: 2, startBefore: past, onExpiry: 'delete' }])
  await c.enqueue(queue, 3, { startWithinMs: 3_600_000, retainMs: 60_000 })
  const [job] = await c.claim(queue, { waitMs: 3_600_000 })
  assert.equal(job.payload, 3)
  const shown = await c.peek({ queue, ids: [dead.id, gone.id, job.id] })
  assert.deepEqual(shown.map((j) => [j.id, j.state, j.startBefore instanceof Date, j.errors.map((e) => e.cause)]),
    [[dead.id, 'dead', true, ['expired']], [job.id, 'claimed', true, []]])
  await job.ack()
  assert.equal((await c.peek({ queue, ids: [job.id] }))[0].state, 'done')
  await assert.rejects(c.enqueue(queue, 1, { onExpiry: 'drop' }), { code: 'bad_request', field: 'on_expiry' })
})

test('wrong arguments name the argument, and nothing is sent', async (t) => {
  const c = new Client({ socket: '/nowhere/x.sock' }) // a call that is sent fails with NotConnected
  const circle = []
  circle.push(circle)
  const wrong = [
    [() => c.enqueue(), /queue is undefined, must be a string/],
    [() => c.enqueue('q', 1, { delay: 5 }), /there is no option delay; the options are .*delayMs/],
    [() => c.enqueue('q', 1, { delayMs: -1 }), /delayMs is -1, must be a number of milliseconds from 0/],
    [() => c.enqueue('q', 1, { delayMs: '5' }), /delayMs is '5'/],
    [() => c.enqueue('q', 1, { runAt: 'tomorrow' }), /runAt is 'tomorrow', must be a Date/],
    [() => c.enqueue('q', 1, { priority: 1.5 }), /priority is 1.5, must be an integer/],
    [() => c.enqueue('q', 1, { headers: { n: 1 } }), /headers\.n is 1, must be a string/],
    [() => c.enqueue('q', 1, { headers: new Map([['a', 'b']]) }), /headers is Map.*must be an object of strings/],
    [() => c.enqueue('q', 1, { delayMs: 5, runAt: new Date() }), /^enqueue: delayMs and runAt exclude each other/],
    [() => c.limit('q', {}), /^limit: name what to change: maxClaimed, rate, burst/],
    [() => c.change('q', ['1'], {}), /^change: name what to change: priority, delayMs, runAt/],
    [() => c.enqueue('q', 1, { group: 7 }), /group is 7, must be a string/],
    [() => c.enqueue('q', Promise.resolve(1)), /payload is a promise: await it/],
    [() => c.enqueue('q', new Map()), /payload is a Map/],
    [() => c.enqueue('q', new Float64Array(1)), /pass bytes as a Buffer/],
    [() => c.enqueue('q', NaN), /payload is NaN/],
    [() => c.enqueue('q', () => {}), /isn't a JSON value/],
    [() => c.enqueue('q', { n: 1n }), /^enqueue: payload has 'n', which is a BigInt, which JSON lacks: convert it/],
    [() => c.enqueueMany([{ queue: 'q', payload: circle }]), /^enqueueMany, job 0: payload can't be JSON: Converting circular structure to JSON/],
    [() => c.enqueue('q', 1n), /BigInt/],
    [() => c.enqueueMany({ queue: 'q' }), /pass a list of jobs/],
    [() => c.enqueueMany([{ queue: 'q' }, { queue: 7 }]), /job 1: queue is 7/],
    [() => c.enqueueMany([{ queue: 'q', data: 7 }]), /job 0: there is no option data/],
    [() => c.enqueueMany(Array(1001).fill({ queue: 'q' })), /1001 jobs; one transaction takes 1000/],
    [() => c.claim(), /queues is undefined/],
    [() => c.claim(['q', 5]), /queues\[1\] is 5/],
    [() => c.claim('q', { max: 0 }), /max is 0/],
    [() => c.claim('q', { leaseMs: 5 }), /leaseMs is 5, must be a number of milliseconds from 1000/],
    [() => c.peek({ state: 'gone' }), /state is 'gone'/],
    [() => c.request('claim', {}), /the client itself sends claim/],
    [() => c.nackMany('x'), /pass a list of jobs that were claimed/],
  ]
  for (const [call, message] of wrong) {
    await assert.rejects(async () => call(), (e) => (assert.match(e.message, message), e instanceof TypeError || e instanceof RangeError))
  }
  assert.throws(() => new Client('/run/x.sock'), /pass the options as an object/)
  assert.throws(() => new Client({ onLost: 1 }), /onLost is 1, must be a function/)
})

test('nack, extend, followUp, results and the lists', async (t) => {
  const c = client(t)
  const [queue, next] = [queueName(), queueName()]
  const many = await c.enqueueMany([1, 2, 3].map((payload) => ({ queue, payload })))
  assert.equal(many.length, 3)
  const [a, b, d] = await c.claim(queue, { max: 3 })
  await a.nack(new Error('no \0 such \ud800 address'), { delayMs: 60_000 })
  a.lost = false
  const [info] = await c.peek({ queue, ids: [a.id] })
  assert.equal(info.state, 'scheduled')
  assert.match(info.errors[0].message, /^Error: no \\0 such \ufffd address\n +at /)
  assert.ok(info.errors[0].at instanceof Date && info.runAt instanceof Date)
  b.followUp(next, { from: b.id }, { delayMs: 0 })
  const more = await b.ack({ enqueue: [{ queue: next, payload: 2 }] })
  assert.equal(more.length, 2)
  await d.extend({ leaseMs: 60_000 })
  assert.deepEqual(await c.ackMany([d, b]), [b])
  assert.equal((await c.stats(next))[0].ready, 2)
  assert.equal(await c.purge(next, 'ready'), 2)
  assert.equal(await c.change(queue, [a.id], { delayMs: 0 }), 1)
  assert.equal(await c.delete(queue, [a.id]), 1)
  await c.pause(queue)
  assert.ok((await c.stats(queue))[0].paused)
  await c.resume(queue)
  await c.limit(queue, { maxClaimed: 3, rate: '100/s', burst: 5 })
  const limits = async () => (({ maxClaimed, rate, burst }) => ({ maxClaimed, rate, burst }))((await c.stats(queue))[0])
  assert.deepEqual(await limits(), { maxClaimed: 3, rate: '100/s', burst: 5 })
  await c.limit(queue, { rate: 0 })
  assert.deepEqual(await limits(), { maxClaimed: 3, rate: undefined, burst: undefined })
  await c.limit(queue, { groupLimit: 2, groupOnFailure: 'skip', groupReady: 3 })
  const { groupLimit, groupOnFailure, groupReady } = (await c.stats(queue))[0]
  assert.deepEqual([groupLimit, groupOnFailure, groupReady], [2, 'skip', 3])
  await c.limit(queue, { none: true })
  assert.deepEqual(await limits(), { maxClaimed: undefined, rate: undefined, burst: undefined })
  await assert.rejects(c.limit(queue, { maxclaimed: 3 }), /there is no option maxclaimed/)
  await assert.rejects(c.limit(queue, { rate: '5/d' }), { code: 'bad_request' })
  const [kept] = await (async () => (await c.enqueue('kept', 1), c.claim('kept')))()
  await kept.ack({ result: { n: 1 } })
  assert.equal(String((await c.peek({ queue: 'kept', ids: [kept.id] }))[0].result), '{"n":1}')
  await c.purge('kept', 'done')
  assert.equal((await c.request('ping')).ok, undefined)
})

test('progress: the next attempt continues', async (t) => {
  const c = client(t)
  const queue = queueName()
  const { id } = await c.enqueue(queue)
  let [job] = await c.claim(queue)
  assert.equal(job.lastProgress, undefined)
  await job.progress(1)
  await job.progress(6, 10, { note: 'page 6' })
  assert.equal(job.settled, false)
  await job.nack('boom', { delayMs: 0 })
  ;[job] = await c.claim(queue, { waitMs: 20_000 })
  const { done, total, data, at } = job.lastProgress
  assert.deepEqual({ done, total, data }, { done: 6, total: 10, data: { note: 'page 6' } })
  assert.ok(at >= job.enqueuedAt)
  assert.deepEqual((await c.job(id)).progress.data, { note: 'page 6' })
  await job.progress(undefined, undefined, Buffer.from([255]))
  await job.nack(undefined, { delayMs: 0 })
  ;[job] = await c.claim(queue, { waitMs: 20_000 })
  assert.deepEqual(job.lastProgress.raw, Buffer.from([255]))
  assert.throws(() => job.lastProgress.data, /isn't JSON/)
  await assert.rejects(job.progress(), { code: 'bad_request' })
  await assert.rejects(job.progress(-1), /done is -1/)
  await job.ack()
  await assert.rejects(job.progress(7), { code: 'lease_lost' })
})

test('wait, call and job', async (t) => {
  const c = client(t)
  const queue = 'waited' // its done jobs are kept, so that a job which ends before its wait begins has a result
  const answer = async (settle, of = queue) => settle((await c.claim(of, { waitMs: 60_000 }))[0])
  const called = queueName()
  let id
  const add = (job) => ((id = job.id), job.ack({ result: { sum: job.payload[0] + job.payload[1] } }))
  const [sum] = await Promise.all([c.call(called, [1, 2]), answer(add, called)])
  assert.deepEqual(sum, { sum: 3 })
  assert.equal((await c.job(id)).state, 'done') // although its queue keeps no done jobs
  await Promise.all([
    assert.rejects(c.call(queue), (e) => e.code === 'job_failed' && e.job.state === 'dead' && /is dead: no such address/.test(e.message)),
    answer((job) => job.nack('no such address', { dead: true })),
  ])
  let late
  const unworked = queueName() // a claim can get a job until a second after its cancel, so no other job is in this queue
  await assert.rejects(c.call(unworked, null, { waitMs: 0 }), (e) => (late = e.job) && e.code === 'not_ended' && /within 0 s/.test(e.message))
  assert.equal((await c.job(late.id)).queue, unworked)
  await c.cancel(unworked, [late.id], { delete: true })
  const [gone] = await c.wait(unworked, [late.id], { waitMs: 0 })
  assert.deepEqual([gone.state, gone.result, gone.raw], ['deleted', null, undefined])
  assert.equal(await c.job(late.id), undefined)
  const [one, two] = [await c.enqueue(queue), await c.enqueue(queue)]
  const [[first]] = await Promise.all([c.wait(queue, [one.id, two.id], { any: true }), answer((job) => job.ack({ result: Buffer.from([255]) }))])
  assert.deepEqual([first.id, first.state, first.raw], [one.id, 'done', Buffer.from([255])])
  assert.throws(() => first.result, /isn't JSON/)
  await Promise.all([c.wait(queue, [two.id]).then((ended) => assert.deepEqual(ended.map((job) => job.id), [two.id])), answer((job) => job.ack())])
  await assert.rejects(c.wait(queue, 'x'), /ids is 'x', must be a list/)
})

test('a batch stores its callback, and a wait returns it', async (t) => {
  const c = client(t)
  const [queue, reports] = [queueName(), queueName()]
  const batch = await c.batch({ onFinish: { queue: reports, payload: { day: 7 } } })
  await batch.enqueue(queue, 1)
  await batch.enqueueMany([{ queue, payload: 2 }])
  assert.deepEqual(await batch.wait({ waitMs: 0 }), { id: batch.id, state: 'open', done: 0, failed: 0, callback: undefined })
  await batch.close()
  const [ended] = await Promise.all([batch.wait(), (async () => {
    for (const job of await c.claim(queue, { max: 2 })) await (job.payload === 1 ? job.ack() : job.nack('no', { dead: true }))
  })()])
  const [report] = await c.claim(reports)
  assert.deepEqual([ended, report.payload], [{ id: batch.id, state: 'ended', done: 1, failed: 1, callback: report.id }, { day: 7 }])
  await report.ack()
  const other = await c.batch({ onSuccess: { queue: reports } })
  await other.enqueue(queue)
  assert.equal(await other.cancel(), 1)
  assert.equal((await other.wait()).state, 'cancelled')
  await assert.rejects(other.wait({ waitMs: -1 }), /waitMs is -1/)
  await assert.rejects(other.wait({ wait: 1 }), /wait/)
})

test('a claim ends with its signal, and gives back what comes late', async (t) => {
  const c = client(t)
  const queue = queueName()
  const abort = new AbortController()
  const waiting = c.claim(queue, { waitMs: 3_600_000, signal: abort.signal })
  await c.ping() // the claim was sent before
  abort.abort(new Error('enough'))
  await assert.rejects(waiting, /enough/)
  await assert.rejects(c.claim(queue, { signal: abort.signal }), /enough/)
  await c.enqueue(queue, 1)
  const [job] = await c.claim(queue, { waitMs: 3_600_000 })
  assert.equal(job.attempt, 1)
  await job.ack()
})

test('jobs iterates until the signal is aborted', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueueMany([1, 2, 3].map((payload) => ({ queue, payload })))
  const abort = new AbortController()
  const seen = []
  for await (const job of c.jobs(queue, { signal: abort.signal })) {
    seen.push(job.payload)
    await job.ack()
    if (seen.length === 3) setImmediate(() => abort.abort()) // while the next claim waits
  }
  assert.deepEqual(seen, [1, 2, 3])
})

test('a lost lease aborts the signal of its job and calls onLost', async (t) => {
  const lost = deferred()
  const c = client(t, { onLost: (jobs) => { lost.resolve(jobs); throw new Error('of the hook') } })
  const queue = queueName()
  const { id } = await c.enqueue(queue, 1)
  const [job] = await c.claim(queue)
  const aborted = deferred()
  job.signal.addEventListener('abort', () => aborted.resolve(job.signal.reason))
  assert.equal(await client(t).reclaim(queue, [id]), 1)
  assert.ok((await aborted.promise) instanceof LeaseLost)
  assert.deepEqual(await lost.promise, [job])
  assert.ok(job.lost)
  await assert.rejects(job.ack(), LeaseLost)
})

test('close returns the jobs without using up an attempt, and a client that waits for nothing lets the process end', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueue(queue, 1)
  const other = client(t)
  await other.claim(queue)
  await other.close()
  await assert.rejects(async () => other.ping(), qsidecar.Closed)
  assert.equal((await c.claim(queue, { waitMs: 60_000 }))[0].attempt, 1)
  const program = `const c = new (require(process.env.QSIDECAR_PACKAGE).Client)({requestTimeoutMs: 120000}); c.enqueue('${queue}', 1).then(() => console.log('stored'))`
  assert.deepEqual(await run(t, program), { code: 0, signal: null, output: 'stored\n' })
})

test('a call of a closed client leaves no timer', async (t) => {
  const program = `
    const c = new (require(process.env.QSIDECAR_PACKAGE).Client)({requestTimeoutMs: 2 ** 31})
    c.close().then(() => c.ping()).catch((e) => console.log(e.code, process.getActiveResourcesInfo().includes('Timeout')))
      .finally(() => setImmediate(() => process.exit()))`
  assert.deepEqual(await run(t, program), { code: 0, signal: null, output: 'closed false\n' })
})

test('an error lists the paths, and QSIDECAR_ENQUEUE_TIMEOUT must be a number', async (t) => {
  const dir = folder(t)
  const c = new Client({ socket: path.join(dir, 'no.sock'), logger: quiet })
  await assert.rejects(c.ping(), (e) => e instanceof NotConnected && e.code === 'not_connected' && e.message.includes(path.join(dir, 'no.sock')))
  await assert.rejects(new Client({ socket: path.join(dir, 'x'.repeat(200)) }).ping(), /ENAMETOOLONG/)
  const before = process.env.QSIDECAR_ENQUEUE_TIMEOUT
  process.env.QSIDECAR_ENQUEUE_TIMEOUT = 'soon'
  await assert.rejects(c.enqueue('q', 1), /QSIDECAR_ENQUEUE_TIMEOUT=soon isn't a number of seconds/)
  if (before === undefined) delete process.env.QSIDECAR_ENQUEUE_TIMEOUT
  else process.env.QSIDECAR_ENQUEUE_TIMEOUT = before
})

test('a request over the limits is not sent', async (t) => {
  const c = client(t)
  await c.ping()
  await assert.rejects(c.enqueue(queueName(), Buffer.alloc(40 << 20, 'x')), TooLarge)
  await c.ping()
})

/** Returns a server that answers hello and then reads nothing more. */
async function stalled(t) {
  const file = path.join(folder(t), 's.sock')
  const sockets = []
  const server = net.createServer((socket) => {
    sockets.push(socket)
    socket.once('data', () => {
      socket.write('{"id":0,"ok":true,"max_frame":67108864}\n')
      socket.pause()
    })
    socket.on('error', () => {})
  })
  await new Promise((resolve) => server.listen(file, resolve))
  t.after(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return { file, sockets, server }
}

test('the time limit includes writing to a sidecar that does not read', async (t) => {
  const { file, sockets } = await stalled(t)
  const c = new Client({ socket: file, logger: quiet })
  t.after(() => c._session.end())
  t.mock.timers.enable({ apis: ['setTimeout'] }) // the time ends when the test says so, however slow the machine is
  const open = (fact) => [...c._session.open.values()].some(fact)
  // Half of this frame fits into the socket. It was not sent, because the client closes the connection.
  const large = assert.rejects(c.enqueue('q', Buffer.alloc(8 << 20, 'x'), { requestTimeoutMs: 300 }), {
    name: 'NotConnected',
    message: `the sidecar on ${file} doesn't read: enqueue was not sent (waited 0.3 s)`,
  })
  while (!open((call) => c._session.wire.writing(call))) await new Promise(setImmediate)
  t.mock.timers.tick(300)
  await large
  // A small frame is in the socket, so the sidecar can read it later.
  const small = assert.rejects(c.enqueue('q', 1, { requestTimeoutMs: 300 }), UnknownOutcome)
  while (!open((call) => call.sent)) await new Promise(setImmediate)
  t.mock.timers.tick(300)
  await small
  assert.equal(sockets.length, 2)
})

test('after the sidecar has ended, errors and the log name its socket', async (t) => {
  const { file, sockets, server } = await stalled(t)
  const logged = deferred()
  const c = new Client({ socket: file, logger: { warn: logged.resolve } })
  t.after(() => c._session.end())
  const ping = c.ping()
  while (sockets.length === 0 || !c._session.wire) await new Promise(setImmediate)
  server.close() // removes the socket
  sockets[0].destroy()
  assert.match(await logged.promise, new RegExp(`can't reach the sidecar on ${file}, trying again: .*ENOENT`))
  await assert.rejects(c.enqueue('q', 1, { requestTimeoutMs: 300 }), {
    name: 'NotConnected',
    message: `no sidecar answers on ${file}: enqueue was not sent (waited 0.3 s)`,
  })
  c._session.end()
  await assert.rejects(ping, { name: 'Closed' })
})

test('import and require have the same names and objects', async () => {
  const esm = await import('../index.mjs')
  for (const [name, value] of Object.entries(qsidecar)) assert.equal(esm[name], value, name)
  assert.deepEqual(Object.keys(esm).filter((name) => name !== 'default').sort(), Object.keys(qsidecar).sort())
})

test('a lost lease names the time limit only near it: within 100 ms, or within half of a short limit', (t) => {
  let clock = 0
  t.mock.method(performance, 'now', () => clock)
  for (const [limit, took, want] of [
    [undefined, 3_600_000, ''],
    [1000, 900, ''],
    [1000, 901, 'it ran longer than its time limit of 1 s'],
    [50, 25, ''],
    [50, 26, 'it ran longer than its time limit of 0.05 s'],
  ]) {
    clock = 0
    const job = new Job({}, { id: '1', queue: 'q', lease: '1.1', attempt: 1, max_attempts: 20, timeout_ms: limit })
    clock = took
    assert.equal(job._overran(), want, `${took} ms of ${limit}`)
  }
})

test('logs and console.log do not show leases', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueue(queue, 1)
  const [job] = await c.claim(queue)
  assert.ok(!require('node:util').inspect(job, { depth: 5 }).includes(job.lease))
  assert.ok(!JSON.stringify(job).includes(job.lease) && !String(job).includes(job.lease))
  await job.ack()
})
