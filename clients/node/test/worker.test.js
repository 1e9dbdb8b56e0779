'use strict'

const assert = require('node:assert/strict')
const fs = require('node:fs')
const net = require('node:net')
const path = require('node:path')
const readline = require('node:readline')
const { test } = require('node:test')
const { inspect } = require('node:util')
const { once } = require('node:events')

const { Behind } = require('../lib/behind')
const { exitCode } = require('../lib/worker')
const { Client, Dead, LeaseLost, Retry, Snooze, Unavailable, Worker, testing } = require('..')
const { PACKAGE, queueName, client, folder, node, deferred, quiet } = require('./helpers')

const PROGRAM = path.join(PACKAGE, 'bin', 'qsidecar-node.js')

/** Runs a worker until it has drained, and returns what it logged. */
async function drain(handlers, options = {}, run = {}) {
  const lines = []
  const log = (line) => lines.push(line)
  const worker = new Worker(handlers, { requestTimeoutMs: 120_000, logger: { info: log, warn: log, error: log }, signals: false, ...options })
  await worker.run({ drain: true, ...run })
  return lines.join('\n')
}

test('outcomes: Retry, Snooze, Dead, other errors, and what the job keeps', async (t) => {
  const c = client(t)
  const queue = queueName()
  const outcomes = {
    retry: () => { throw new Retry('full', { delayMs: 3_600_000 }) },
    snooze: () => { throw new Snooze('later', { delayMs: 3_600_000 }) },
    dead: async () => { throw new Dead('no such picture') },
    error: async () => { throw new RangeError('seven') },
    text: () => { throw 'only a text' },
    nothing: () => { throw undefined },
    array: () => [Promise.resolve(1)],
    lazy: () => (function* () {})(),
    function: () => () => {},
    big: () => 1n,
  }
  const ids = {}
  for (const name of Object.keys(outcomes)) ids[name] = (await c.enqueue(queue, name, { maxAttempts: name === 'retry' ? 2 : 1 })).id
  const log = await drain({ [queue]: { result: true, run: (job) => outcomes[job.payload]() } })
  const state = {}
  for (const [name, id] of Object.entries(ids)) {
    const [job] = await c.peek({ queue, ids: [id] })
    state[name] = [job.state, job.errors[0]?.message.split('\n')[0]]
  }
  assert.deepEqual(state, {
    retry: ['scheduled', 'full'],
    snooze: ['scheduled', undefined],
    dead: ['dead', 'no such picture'],
    error: ['dead', 'RangeError: seven'],
    text: ['dead', 'only a text'],
    nothing: ['dead', 'thrown: undefined'],
    array: ['dead', 'TypeError: the function returned a promise in a list: wait for it, with Promise.all for example'],
    lazy: ['dead', 'TypeError: the function returned a generator, which has not run: its work was not done'],
    function: ['dead', 'TypeError: the function returned a function, which has not run: its work was not done'],
    big: ['dead', 'TypeError: ack: result is a BigInt, which JSON lacks: convert it'],
  })
  assert.match(log, /its outcome was refused, so the attempt has failed: TypeError: ack: result is a BigInt/)
})

test('an error that no function catches fails its own job only', async (t) => {
  const c = client(t)
  const queue = queueName()
  const stored = await c.enqueueMany(['timer', 'promise', 'good'].map((payload) => ({ queue, payload, maxAttempts: 1 })))
  const dir = folder(t, {
    'worker.js': `
      const { Client, Worker } = require(process.env.QSIDECAR_PACKAGE)
      module.exports = new Worker({ '${queue}': async (job) => {
        if (job.payload === 'timer') setTimeout(() => { throw new Error('in a timer') })
        if (job.payload === 'promise') Promise.reject(new Error('not awaited'))
        if (job.payload !== 'good') return new Promise(() => {}) // never ends by itself
        while ((await new Client().stats('${queue}'))[0].dead < 2);
      }})`,
  })
  const { code, output } = await node(t, [PROGRAM, 'work', path.join(dir, 'worker.js'), '--drain']).ended
  assert.equal(code, 0, output)
  const errors = (await c.peek({ queue, ids: stored.map(({ id }) => id) })).map((job) => job.errors[0].message.split('\n')[0])
  assert.deepEqual(errors.sort(), ['Error: in a timer', 'Error: not awaited'])
})

test('a run over its time limit is logged as such', async (t) => {
  const c = client(t)
  const queue = queueName()
  const { id } = await c.enqueue(queue, 1, { timeoutMs: 50, maxAttempts: 1 })
  let refused
  const log = await drain({
    [queue]: async (job) => {
      while (!job.lost) await new Promise((resolve) => setTimeout(resolve, 5))
      refused = await job.ack().catch((e) => e.message)
    },
  })
  assert.match(refused, new RegExp(`^job ${id}: it ran longer than its time limit of 0.05 s; another worker can have it`))
  assert.match(log, new RegExp(`job ${id} of ${queue}, attempt 1 of 1 is dead, after its last attempt: it ran longer than its time limit of 0.05 s$`, 'm'))
})

test('hooks run before and after the function, and their errors fail the job', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueueMany([1, 2, 3].map((payload) => ({ queue, payload, maxAttempts: 1 })))
  const calls = []
  await drain(
    { [queue]: (job) => { calls.push(`run ${job.payload}`) } },
    {
      concurrency: 1,
      before: (job) => { if (job.payload === 2) throw new Error('before') },
      after: async (job, error) => { calls.push(`after ${job.payload} ${error?.message}`); if (job.payload === 3) throw new Error('after') },
    },
  )
  assert.deepEqual(calls, ['run 1', 'after 1 undefined', 'after 2 before', 'run 3', 'after 3 undefined'])
  assert.equal((await c.stats(queue))[0].dead, 2)
})

for (const ack of ['behind', 'sync']) {
  test(`so many jobs run at once, of each queue its own number (ack ${ack})`, async (t) => {
    const c = client(t)
    const [a, b] = [queueName(), queueName()]
    await c.enqueueMany(Array.from({ length: 60 }, (_, i) => ({ queue: i % 2 ? a : b, payload: i })))
    const now = { [a]: 0, [b]: 0 }
    const most = { [a]: 0, [b]: 0 }
    const run = async (job) => {
      most[job.queue] = Math.max(most[job.queue], ++now[job.queue])
      await new Promise(setImmediate)
      now[job.queue]--
    }
    await drain({ [a]: run, [b]: run }, {}, { queues: { [a]: 3, [b]: null }, concurrency: 2, ack })
    assert.deepEqual([now, most], [{ [a]: 0, [b]: 0 }, { [a]: 3, [b]: 2 }])
    assert.deepEqual(await c.claim([a, b]), [])
  })
}

test('a cancelled job is aborted, and not run again', async (t) => {
  const c = client(t)
  const queue = queueName()
  const { id } = await c.enqueue(queue, 'x', { key: 'k' })
  const seen = []
  const worker = new Worker({
    [queue]: async (job) => {
      setImmediate(() => c.cancel(queue, [id, 'no-such-job']).then((n) => seen.push(n)))
      await new Promise((resolve) => job.signal.addEventListener('abort', resolve))
      seen.push(job.cancelled, job.lost, job.signal.reason.constructor.name, job.signal.reason instanceof LeaseLost)
      job.signal.throwIfAborted()
    },
  }, { requestTimeoutMs: 120_000, logger: quiet, signals: false })
  const running = worker.run()
  while ((await c.peek({ queue, ids: [id] }))[0].state !== 'dead' || seen.length < 5) await new Promise(setImmediate)
  worker.stop()
  await running
  assert.deepEqual(seen.filter((x) => x !== 1), [true, true, 'Cancelled', true])
  assert.deepEqual((await c.peek({ queue, ids: [id] }))[0].errors.map((e) => e.cause), ['cancelled'])
  assert.equal(await c.cancel(queue, { key: 'k' }, { delete: true }), 1)
  assert.equal(await c.cancel(queue, { key: 'k' }, { delete: true }), 0)
})

test('drain works the jobs that its own acks store', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueue(queue, 5)
  let ran = 0
  await drain({ [queue]: (job) => { ran++; if (job.payload > 0) job.followUp(queue, job.payload - 1) } })
  assert.equal(ran, 6)
})

test('no job begins while 32 are begun and not settled', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueueMany(Array.from({ length: 100 }, (_, payload) => ({ queue, payload })))
  const worker = new Worker({ [queue]: () => { ran++ } }, { requestTimeoutMs: 120_000, logger: quiet, signals: false })
  let ran = 0
  await worker.client.ping()
  const session = worker.client._session
  const handle = session.wire.onMessage
  const held = []
  const full = deferred()
  // Replies to acks wait, and those to claims don't.
  session.wire.onMessage = (message) => {
    if (message.acked === undefined || held === undefined) return handle(message)
    held.push(message)
    if (held.length === 32) full.resolve()
  }
  const running = worker.run()
  await full.promise
  await worker.client.ping() // replies to claims that came before are handled
  await new Promise(setImmediate)
  assert.equal(ran, 32)
  session.wire.onMessage = handle
  held.forEach(handle)
  const client2 = client(t)
  while ((await client2.stats(queue)).some((q) => q.ready + q.claimed > 0)) await new Promise(setImmediate)
  worker.stop()
  await running
  assert.equal(ran, 100)
})

test('a wait to begin goes on if another job takes the place first', async () => {
  const jobs = Array.from({ length: 35 }, (_, id) => ({ id }))
  for (let turns = 0; turns < 8; turns++) {
    const behind = new Behind({}, 1, false, () => false, quiet)
    for (const job of jobs.slice(0, 32)) await behind.begin(job)
    const can = behind.canBegin()
    behind.leave(jobs[0])
    for (let i = 0; i < turns; i++) await undefined
    const begun = []
    const begin = async (job) => (assert.ok(await behind.begin(job)), begun.push(job))
    const begins = [begin(jobs[32]), begin(jobs[33])]
    await new Promise(setImmediate)
    assert.equal(begun.length, 1, `after ${turns} turns`)
    behind.leave(jobs[1])
    behind.leave(jobs[2])
    assert.ok(await can, `after ${turns} turns`)
    await Promise.all(begins)
  }
})

/** Returns a sidecar that has one job and answers no settle. kill ends it, and no other one starts. */
async function holding(t) {
  const socket = path.join(folder(t), 's')
  const connections = new Set()
  const settles = []
  let jobs = [{ id: '1', queue: 'q', lease: '1.1', attempt: 1, max_attempts: 20, fence: 1 }]
  let waiting
  const server = net.createServer((connection) => {
    connections.add(connection)
    connection.on('error', () => {})
    const answer = (id, reply) => connection.write(`${JSON.stringify({ ok: true, id, ...reply })}\n`)
    readline.createInterface({ input: connection }).on('error', () => {}).on('line', (line) => {
      const { id, op, wait_ms: wait } = JSON.parse(line)
      if (op === 'ack') settles.push({ id, answer: (reply) => answer(id, reply) })
      else if (op !== 'claim') answer(id, { max_frame: 1 << 20, lost: [] })
      else if (wait && jobs.length === 0) waiting = id
      else answer(id, { jobs: jobs.splice(0) })
      if (op === 'cancel_claim' && waiting !== undefined) answer(waiting, { jobs: [] })
    })
  })
  await new Promise((resolve) => server.listen(socket, resolve))
  const kill = () => {
    server.close()
    for (const connection of connections) connection.destroy()
  }
  t.after(kill)
  return { socket, settles, kill }
}

/** Runs a worker on a held sidecar until a settle is unanswered, or until a job runs that ends with `job`. */
async function unanswered(t, run, job) {
  const sidecar = await holding(t)
  let clock = 0
  let checks = 0
  t.mock.method(performance, 'now', () => (checks++, clock))
  const lines = []
  const log = (line) => lines.push(line)
  const c = new Client({ socket: sidecar.socket, logger: quiet })
  c._disconnect = async () => c._session.end() // it waits for ten seconds for the settle
  let begun = false
  const worker = new Worker({ q() { begun = true; return job } }, { client: c, logger: { info() {}, warn() {}, error: log }, signals: false, concurrency: 1 })
  let failed
  const ended = worker.run(run).then(() => (failed = null), (error) => (failed = error))
  const until = async (fact) => { while (!fact()) await new Promise((resolve) => setTimeout(resolve, 5)) }
  await until(() => (job ? begun : sidecar.settles.length > 0))
  /** Checks that the worker ends only when the settle is too old. */
  const ends = async () => {
    clock = 59_999
    const before = checks
    await until(() => checks > before + 3)
    assert.equal(failed, undefined, 'it goes on')
    clock = 60_000
    await ended
    assert.equal(failed?.constructor, Unavailable, failed)
    assert.match(failed.message, /^no answer for a minute to the settles of finished jobs \(1\): the sidecar or its database is unavailable; check/)
    assert.equal(exitCode(failed), 5)
    assert.deepEqual(lines, ['qsidecar: job 1 of q, attempt 1 of 20 could not be settled: no answer from the sidecar'])
  }
  return { ...sidecar, worker, ends, until, ended, tick: (ms) => (clock += ms), running: () => failed === undefined, error: () => failed }
}

for (const [name, run] of Object.entries({ drain: { drain: true }, stop: {}, 'drain, sync': { drain: true, ack: 'sync' }, 'stop, sync': { ack: 'sync' } })) {
  test(`a worker ends without a sidecar (${name})`, async (t) => {
    const w = await unanswered(t, run)
    w.kill()
    w.tick(30_000)
    if (!run.drain) w.worker.stop()
    await w.ends()
  })
}

for (const ack of ['behind', 'sync']) {
  test(`a drain ends if its sidecar dies during a job (${ack})`, async (t) => {
    const job = deferred()
    const w = await unanswered(t, { drain: true, ack, concurrency: 8 }, job.promise)
    w.kill()
    await w.until(() => w.worker.client._session.wire === undefined)
    job.resolve()
    await w.until(() => w.worker.client._session.queue.some((call) => call.op === 'ack'))
    await w.ends()
  })
}

test('a worker that stops ends without a database', async (t) => {
  for (const ack of ['behind', 'sync']) {
    await t.test(ack, async (t) => {
      const w = await unanswered(t, { ack })
      w.worker.stop()
      const refuse = w.until(() => {
        for (const settle of w.settles.splice(0)) settle.answer({ ok: false, error: { code: 'unavailable', message: 'no', retry_ms: 5 } })
        return !w.running()
      })
      await w.ends()
      await refuse
    })
  }
})

test('a worker that neither drains nor stops waits for its sidecar', async (t) => {
  const w = await unanswered(t, {})
  w.kill()
  w.tick(3_600_000)
  await new Promise((resolve) => setImmediate(resolve))
  assert.ok(w.running())
  w.worker.stop()
  await w.ended
  assert.equal(w.error().constructor, Unavailable)
})

test('wrong arguments of a worker', async () => {
  assert.throws(() => new Worker(), /pass an object with a function for each queue/)
  assert.throws(() => new Worker({}), /it has no queue/)
  for (const wrong of [5, 'send', null, { run: 'send' }]) {
    assert.throws(() => new Worker({ q: wrong }), new RegExp(`the handler of the queue q is ${wrong?.run ? "'send'" : inspect(wrong)}: pass a function, or an object with one in run`))
  }
  assert.throws(() => new Worker({ q: function* () {} }), /generator function/)
  assert.throws(() => new Worker({ q() {} }, { concurency: 5 }), /there is no option concurency/)
  assert.throws(() => new Worker({ q() {} }, { client: {} }), /must be a Client/)
  assert.throws(() => new Worker({ q() {} }, { client: new Client(), socket: 'x' }), /pass a client, or socket/)
  const worker = new Worker({ q() {} })
  await assert.rejects(worker.run({ concurrency: 0 }), /concurrency is 0/)
  await assert.rejects(worker.run({ queues: ['mail'] }), /no function for the queue 'mail', only for q/)
  await assert.rejects(worker.run({ ack: 'later' }), /ack is 'later', must be one of behind, sync/)
  await assert.rejects(worker.run({ order: 'strict', weights: { q: 2 } }), /weights need order: 'rotate'/)
  await assert.rejects(worker.run({ weights: { other: 2 } }), /weights has the queue 'other', which isn't one of/)
  const two = new Worker({ q() {}, own() {} })
  assert.deepEqual(two._shares({ queues: { q: null, own: 2 }, weights: { q: 3 } }).map(({ queues }) => queues), [['q'], ['own']])
  await assert.rejects(two.run({ queues: { q: null, own: 2 }, weights: { own: 3 } }), /weights has the queue 'own', whose jobs have a number of their own/)
  await assert.rejects(two.run({ queues: { own: 2 }, weights: { own: 3 } }), /weights has the queue 'own', whose jobs have a number of their own/)
  await assert.rejects(worker.run({ order: 'random' }), /order is 'random', must be one of rotate, strict/)
  await assert.rejects(worker.run({ threads: 2 }), /threads load the module/)
  assert.throws(() => new Retry('x', { delay: 5 }), /there is no option delay/)
})

test('threads: results, outcomes, follow-ups, exits, lost leases', async (t) => {
  const c = client(t)
  const [queue, next] = [queueName(), queueName()]
  const dir = folder(t, {
    'worker.mjs': `
      import { writeSync } from 'node:fs'
      import { createRequire } from 'node:module'
      const { Worker, Snooze } = createRequire(import.meta.url)(process.env.QSIDECAR_PACKAGE)
      const parent = process.ppid // a test that was killed must leave no thread that computes
      export default new Worker({ kept: { result: true, run: (job) => ({ n: job.payload }) }, '${next}-p': async (job) => {
        if (job.lastProgress) return console.log('continues at', job.lastProgress.done, job.lastProgress.data)
        await job.progress(6, 10, 'page 6')
        throw new Snooze('again', { delayMs: 0 })
      }, '${queue}': async (job) => {
        if (job.payload === 'exit') process.exit(3)
        if (job.payload === 'snooze') throw new Snooze('later', { delayMs: 3600000 })
        if (job.payload === 'error') throw new RangeError('seven')
        if (job.payload === 'ack') await job.ack()
        if (job.payload === 'lost') { job.followUp('${next}', 'begun'); writeSync(1, 'computing\\n'); while (!job.lost && process.ppid === parent); console.log('lost') }
        if (job.payload === 'next') job.followUp('${next}', 1)
      }}, {concurrency: 8})`,
  })
  const ids = {}
  for (const payload of ['exit', 'snooze', 'error', 'ack', 'next', 'lost']) ids[payload] = (await c.enqueue(queue, payload, { maxAttempts: 1 })).id
  const kept = await c.enqueue('kept', 7)
  await c.enqueue(`${next}-p`)
  const { child, ended } = node(t, [PROGRAM, 'work', path.join(dir, 'worker.mjs'), '--threads', '2', '--drain'])
  let computing = 0 // written at once: what a thread logs can wait until it stops computing
  child.stdout.on('data', (text) => {
    if (!String(text).includes('computing')) return
    computing++
    if (computing === 1) c.reclaim(queue, [ids.lost]) // it is delivered again
    else c.pause(queue).then(() => c.reclaim(queue, [ids.lost])).then(() => c.delete(queue, [ids.lost])) // before a thread gets it again
  })
  const { code, output } = await ended
  assert.equal(code, 0, output)
  const state = {}
  for (const job of await c.peek({ queue, ids: Object.values(ids) })) {
    state[Object.keys(ids).find((name) => ids[name] === job.id)] = [job.state, job.errors[0]?.message.split('\n')[0]]
  }
  delete state.lost
  assert.deepEqual(state, {
    exit: ['dead', 'Error: the thread ended with the exit code 3'],
    snooze: ['scheduled', undefined],
    error: ['dead', 'RangeError: seven'],
    ack: ['dead', 'QsidecarError: ack: in a thread, a job is settled by what its function returns or throws'],
  })
  assert.match(output, /computing[^]*lost/)
  assert.match(output, /continues at 6 page 6/)
  assert.deepEqual((await c.claim(next, { max: 10 })).map((job) => job.payload), [1])
  assert.equal(String((await c.peek({ queue: 'kept', ids: [kept.id] }))[0].result), '{"n":7}')
  await c.purge('kept', 'done')
})

test('threads that cannot load the module end the worker, and no attempt counts', async (t) => {
  const c = client(t)
  const queue = queueName()
  await c.enqueueMany([1, 2, 3].map((payload) => ({ queue, payload })))
  const dir = folder(t, {
    'worker.js': `if (!require('node:worker_threads').isMainThread) throw new Error('not in a thread')
      module.exports = new (require(process.env.QSIDECAR_PACKAGE).Worker)({'${queue}'() {}})`,
  })
  const { code, output } = await node(t, [PROGRAM, 'work', path.join(dir, 'worker.js'), '--threads', '2']).ended
  assert.equal(code, 1, output)
  assert.match(output, /a thread could not load .*: not in a thread/)
  const jobs = []
  while (jobs.length < 3) jobs.push(...(await c.claim(queue, { max: 3, waitMs: 60_000 })))
  assert.deepEqual(jobs.map((job) => job.attempt), [1, 1, 1])
})

test('a worker that TypeScript compiled to CommonJS', async (t) => {
  const queue = queueName()
  const c = client(t)
  const dir = folder(t, {
    'worker.js': `"use strict";
      Object.defineProperty(exports, "__esModule", { value: true });
      const qsidecar_1 = require(process.env.QSIDECAR_PACKAGE);
      const worker = new qsidecar_1.Worker({ '${queue}': (job) => console.log('got', job.payload) });
      exports.default = worker;`,
  })
  for (const threads of [[], ['--threads', '2']]) {
    await c.enqueue(queue, threads.length)
    const { code, output } = await node(t, [PROGRAM, 'work', path.join(dir, 'worker.js'), ...threads, '--drain']).ended
    assert.equal(code, 0, output)
    assert.match(output, new RegExp(`got ${threads.length}`))
  }
})

test('the program: wrong arguments, wrong files, no sidecar', async (t) => {
  const dir = folder(t, {
    'worker.odd': '',
    'none.js': 'exports.worker = 1',
    'broken.js': "require('./missing')",
    'good.js': 'const {Worker} = require(process.env.QSIDECAR_PACKAGE); module.exports = new Worker({q() {}})',
  })
  const good = path.join(dir, 'good.js')
  for (const [args, code, text] of [
    [[], 2, /name the file of the worker/],
    [['work', path.join(dir, 'no.js')], 2, /there is no file/],
    [['work', path.join(dir, 'none.js')], 2, /doesn't export a Worker as its default/],
    [['work', path.join(dir, 'worker.odd')], 2, /Unknown file extension ".odd" .*worker\.odd; compile TypeScript to JavaScript, or run node --import tsx /],
    [['work', path.join(dir, 'broken.js')], 1, /Cannot find module '.\/missing'/],
    [['work', good, '-j', '0'], 2, /--concurrency is 0, must be a number from 1 on/],
    [['work', good, '--queue', 'mail'], 2, /no function for the queue 'mail'/],
    [['work', good, '--queue', 'q=x'], 2, /--queue q is x/],
    [['work', good, '--ack', 'no'], 2, /--ack is no, must be one of behind, sync/],
    [['work', good, '--no-such'], 2, /there is no option --no-such: qsidecar-node --help lists the options/],
    [['work', good, '--drain'], 5, /no sidecar answers on .*no\.sock/],
    [['--help'], 0, /usage: qsidecar-node work FILE/],
  ]) {
    const got = await node(t, [PROGRAM, ...args], { env: { QSIDECAR_SOCKET: path.join(dir, 'no.sock') } }).ended
    assert.equal(got.code, code, `${args}: ${got.output}`)
    assert.match(got.output, text)
  }
})

test('an error outside of jobs ends the process, as without a worker', async (t) => {
  const dir = folder(t, {
    'worker.js': 'const {Worker} = require(process.env.QSIDECAR_PACKAGE); module.exports = new Worker({q() {}}); setTimeout(() => { throw new Error("from elsewhere") }, 1)',
  })
  const { code, output } = await node(t, [PROGRAM, 'work', path.join(dir, 'worker.js')]).ended
  assert.equal(code, 1, output)
  assert.match(output, /Error: from elsewhere/)
})

test('a second signal ends the process at once', async (t) => {
  const queue = queueName()
  const c = client(t)
  await c.enqueue(queue, 1)
  const dir = folder(t, {
    'worker.js': `const {Worker} = require(process.env.QSIDECAR_PACKAGE)
      module.exports = new Worker({'${queue}'() { console.log('begun'); return new Promise(() => {}) }})`,
  })
  const { child, ended, said } = node(t, [PROGRAM, 'work', path.join(dir, 'worker.js')])
  await said('begun')
  process.kill(child.pid, 'SIGTERM') // child.kill of Deno works once
  await said('stopping; running jobs: 1; a second signal ends the worker at once')
  process.kill(child.pid, 'SIGINT')
  const { code, output } = await ended
  assert.equal(code, 1)
  assert.match(output, /warn qsidecar: ended by a second signal; running jobs that use up an attempt: 1\n$/)
})

test('testing.inline runs jobs at once, without a sidecar', async (t) => {
  const client = new Client({ socket: '/nowhere/x.sock' })
  const worker = new Worker(
    {
      mail: async (job) => { job.followUp('audit', `mailed ${job.payload.to}`); await job.ack() },
      fails: () => { throw new Error('no') },
    },
    { client },
  )
  const did = testing.inline({ workers: [worker] })
  t.after(() => did.restore())
  assert.deepEqual(await client.enqueue('mail', { to: 'ada' }, { key: 'k', group: 'ada' }), { id: 'inline-1', duplicate: false, state: undefined })
  assert.deepEqual(await client.enqueue('mail', { to: 'bob' }, { key: 'k' }), { id: 'inline-1', duplicate: true, state: 'deleted' })
  assert.deepEqual(did.jobs.map((done) => [done.queue, done.payload, done.ran]), [['mail', { to: 'ada' }, true], ['audit', 'mailed ada', false]])
  assert.equal(did.jobs[0].fields.group, 'ada')
  await assert.rejects(client.enqueue('fails'), /no/)
  assert.equal(did.of('fails')[0].error.message, 'no')
  await assert.rejects(client.stats(), { name: 'NotConnected', message: /^stats: testing.inline covers enqueue only; no sidecar answers on / })
  did.restore()
  await assert.rejects(client.enqueue('mail', 1), /^NotConnected: no sidecar answers/)
})

test('index.d.ts declares every export and every method', () => {
  const types = fs.readFileSync(path.join(PACKAGE, 'index.d.ts'), 'utf8')
  const qsidecar = require('..')
  for (const [name, value] of Object.entries(qsidecar)) {
    assert.match(types, new RegExp(`export (class|namespace) ${name}\\b`), name)
    if (typeof value !== 'function') continue
    const body = new RegExp(`class ${name}\\b[^]*?\\n}`).exec(types)[0]
    for (const member of Object.getOwnPropertyNames(value.prototype)) {
      if (member !== 'constructor' && member !== 'name' && !member.startsWith('_')) assert.match(body, new RegExp(`^  (readonly |get )?${member}\\b`, 'm'), `${name}.${member}`)
    }
  }
})
