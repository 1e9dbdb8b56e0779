'use strict'
// Declarations of schedules, by the client and at the start of a worker.

const assert = require('node:assert/strict')
const path = require('node:path')
const { test } = require('node:test')

const { BadRequest, Client, NotConnected, Worker } = require('..')
const { queueName, client, folder, deferred } = require('./helpers')

/** Deletes a schedule after the test. */
function removed(t, name) {
  const c = new Client({ requestTimeoutMs: 120_000 })
  t.after(async () => {
    await c.request('change_schedule', { queue: name, schedule: { name }, do: 'delete' })
    await c.close()
  })
}

test('a declaration', async (t) => {
  const c = client(t)
  const queue = queueName()
  const given = { queue, cron: '0 6 * * *', tz: 'Europe/Berlin', payload: { kind: 'daily' }, headers: { a: 'b' }, source: 'app', version: 1 }
  assert.equal(await c.schedule(queue, given), 'created')
  removed(t, queue)
  assert.equal(await c.schedule(queue, given), 'unchanged')
  assert.equal(await c.schedule(queue, { ...given, cron: '0 7 * * *', version: 2 }), 'updated')
  assert.equal(await c.schedule(queue, { ...given, cron: '0 8 * * *' }), 'ignored')
  await c.request('change_schedule', { queue, schedule: { name: queue }, do: 'run' })
  const [job] = await c.claim(queue, { waitMs: 3_600_000 })
  assert.deepEqual(job.payload, { kind: 'daily' })
  assert.deepEqual([job.headers.a, job.headers['qsidecar-schedule']], ['b', queue])
  await job.ack()
})

test('every field of a definition, and a payload of bytes', async (t) => {
  const c = client(t)
  const queue = queueName()
  const payload = Buffer.from([0xff, 0])
  await c.schedule(queue, { queue, everyMs: 90_000, splayMs: 5000, payload, priority: 3, missed: 'all', overlap: 'skip' })
  removed(t, queue)
  const { schedules: [found] } = await c.request('schedules', { schedule: { name: queue } })
  const { every_ms, splay_ms, payload_b64, priority, missed, overlap } = found
  assert.deepEqual([every_ms, splay_ms, payload_b64, priority, missed, overlap], [90_000, 5000, payload.toString('base64'), 3, 'all', 'skip'])
})

test('errors of declarations', async (t) => {
  const c = new Client({ socket: '/nowhere/x.sock' }) // a call that is sent fails with NotConnected
  const worker = new Worker({ q: () => {} }, { client: c })
  const wrong = [
    [['s', { queue: 'q' }], /^schedule s: give cron or everyMs/],
    [['s', { queue: 'q', cron: '0 6 * * *', everyMs: 60_000 }], /^schedule s: give cron or everyMs/],
    [['s', { queue: 'q', every: 60 }], /^schedule: there is no option every; the options are .*everyMs/],
    [['s', { queue: 'q', everyMs: 5 }], /everyMs is 5, must be a number of milliseconds from 1000/],
    [['s', { queue: 'q', cron: 5 }], /cron is 5, must be a string/],
    [['s', { cron: '@daily' }], /queue is undefined, must be a string/],
    [['s', { queue: 'q', cron: '@daily', payload: NaN }], /payload is NaN/],
    [[undefined, { queue: 'q', cron: '@daily' }], /name is undefined/],
  ]
  for (const [given, message] of wrong) {
    await assert.rejects(async () => c.schedule(...given), { message })
    assert.throws(() => worker.schedule(...given), { message })
  }
  const queue = queueName()
  await assert.rejects(client(t).schedule('s', { queue, cron: '61 * * * *' }), (e) => e instanceof BadRequest && /61/.test(e.message))
})

test('a worker declares its schedules when it starts', async (t) => {
  const lines = []
  const log = (line) => lines.push(line)
  const queue = queueName()
  const twice = deferred()
  const seen = new Set()
  const worker = new Worker({
    [queue]: (job) => {
      seen.add(job.headers['qsidecar-occurrence'])
      if (seen.size === 2) twice.resolve()
    },
  }, { requestTimeoutMs: 120_000, signals: false, logger: { info: log, warn: log, error: log } })
  worker.schedule(queue, { queue, everyMs: 1000, payload: 'tick', missed: 'all' })
  removed(t, queue)
  const running = worker.run()
  await twice.promise
  worker.stop()
  await running
  assert.ok(lines.includes(`qsidecar: schedule ${queue}: created`), lines.join('\n'))
})

test('a worker waits for the sidecar to declare its schedules, and a drain does not', async (t) => {
  const socket = path.join(folder(t), 's.sock')
  const warned = deferred()
  const lines = []
  const logger = { warn: (line) => (lines.push(line), warned.resolve()), error() {} }
  const worker = new Worker({ q: () => {} }, { socket, signals: false, logger })
  worker.schedule('s', { queue: 'q', cron: '@daily' })
  await assert.rejects(worker.run({ drain: true }), NotConnected)
  const running = worker.run()
  await warned.promise
  worker.stop()
  await running
  assert.match(lines[0], /^qsidecar: can't declare the schedule s, trying again: no sidecar answers/)
})

test('a rejected declaration ends the run', async (t) => {
  const queue = queueName()
  const worker = new Worker({ [queue]: () => {} }, { requestTimeoutMs: 120_000, signals: false })
  worker.schedule('s', { queue, cron: '61 * * * *' })
  await assert.rejects(worker.run(), BadRequest)
})
