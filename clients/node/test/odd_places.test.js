'use strict'
// Calls from places where a program is not in its usual course. None hangs: it works, or throws an error that names the cause.

const assert = require('node:assert/strict')
const path = require('node:path')
const { test } = require('node:test')

const { LeaseLost } = require('..')
const { PACKAGE, queueName, client, folder, node, deferred } = require('./helpers')

const PROGRAM = path.join(PACKAGE, 'bin', 'qsidecar-node.js')

// What each program begins with.
const BEGIN = `
  const { Client, Worker, Closed } = require(process.env.QSIDECAR_PACKAGE)
  const c = new Client({ requestTimeoutMs: 120000 })
  const fail = (e) => console.log(e.code, e.message)
`

/** Runs a program with Node, and returns its output. Its exit code must be 0. */
async function output(t, program, args = []) {
  const { code, output } = await node(t, [...args, '-e', BEGIN + program]).ended
  assert.equal(code, 0, output)
  return output
}

test('handlers of the event exit: every call throws at once, and close of an unused client returns', async (t) => {
  const queue = queueName()
  const got = await output(t, `
    process.on('exit', () => {
      const worker = new Worker({ '${queue}'() {} })
      for (const [name, object] of Object.entries({ client: c, unused, job, worker })) {
        for (const [method, { value }] of Object.entries(Object.getOwnPropertyDescriptors(Object.getPrototypeOf(object)))) {
          if (typeof value !== 'function' || method === 'constructor' || method.startsWith('_')) continue
          let got = 'returned'
          try { object[method]('${queue}', ['1']) } catch (e) { got = e instanceof Closed && e.message }
          if (!String(got).startsWith(method + ' was not sent: the process exits')) console.log(name, method, got)
        }
      }
      try { c.jobs('${queue}').next() } catch (e) { console.log('next', e instanceof Closed) }
    })
    let job
    const unused = new Client()
    c.enqueue('${queue}', 1).then(() => c.claim('${queue}')).then(([claimed]) => { job = claimed; process.exit() })
  `)
  assert.deepEqual(got.trim().split('\n'), [
    'client cancelClaims returned', 'unused cancelClaims returned', 'unused close returned', // they need no reply
    'job toString returned', 'job followUp returned', // they make no call
    'worker schedule false', // nor does this one, whose arguments are wrong
    'worker stop returned', 'worker perform returned',
    'next true',
  ])
  const [job] = await client(t).claim(queue, { waitMs: 120_000 })
  assert.equal(job.attempt, 2) // its process ended without returning it
})

test('signal handlers, beforeExit, and handlers of errors that no function caught', async (t) => {
  const queue = queueName()
  const got = await output(t, `
    const alive = setInterval(() => {}, 1e6)
    const throws = () => { throw new Error('not caught') }
    const did = (where) => c.enqueue('${queue}', where).then(() => console.log(where), fail)
    process.once('beforeExit', () => did('beforeExit'))
    process.on('uncaughtException', () => did('uncaughtException').then(() => clearInterval(alive)))
    process.on('unhandledRejection', () => did('unhandledRejection').then(() => setImmediate(throws)))
    process.on('SIGUSR2', () => did('SIGUSR2').then(() => Promise.reject(new Error('not caught'))))
    c.claim('${queue}-none', { waitMs: 3600000 }).catch(() => {}) // another call is under way
    c.ping().then(() => { c.cancelClaims(); process.kill(process.pid, 'SIGUSR2') })
  `)
  assert.deepEqual(got.trim().split('\n'), ['SIGUSR2', 'unhandledRejection', 'uncaughtException', 'beforeExit'])
})

test('finalizers', async (t) => {
  const queue = queueName()
  const got = await output(t, `
    const registry = new FinalizationRegistry((where) => c.enqueue('${queue}', where).then(() => { console.log(where); clearInterval(alive) }, fail))
    registry.register({}, 'finalizer')
    const alive = setInterval(gc, 10)
  `, ['--expose-gc'])
  assert.equal(got, 'finalizer\n')
})

test('listeners of a signal, onLost, and a logger', async (t) => {
  const queue = queueName()
  const lost = deferred()
  const calls = deferred()
  const c = client(t, { onLost: (jobs) => c.enqueue(`${queue}-lost`, jobs[0].id).then(lost.resolve) })
  const { id } = await c.enqueue(queue, 1)
  const [job] = await c.claim(queue)
  job.signal.addEventListener('abort', () => calls.resolve(Promise.allSettled([job.ack(), job.nack('x'), c.enqueue(`${queue}-aborted`, 1)])))
  assert.equal(await client(t).reclaim(queue, [id]), 1)
  assert.deepEqual((await calls.promise).map(({ status, reason }) => reason?.code ?? status), [LeaseLost.code, LeaseLost.code, 'fulfilled'])
  await lost.promise

  const abort = new AbortController()
  let inner
  abort.signal.addEventListener('abort', () => (inner = Promise.all([c.enqueue(queue, 2), c.claim(`${queue}-lost`)])))
  const outer = c.claim(`${queue}-none`, { waitMs: 3_600_000, signal: abort.signal })
  await c.ping() // the claim was sent before
  abort.abort(new Error('enough'))
  await assert.rejects(outer, /enough/)
  assert.equal((await inner)[1].length, 1)

  const written = []
  const log = (line) => written.push(c.enqueue(`${queue}-log`, line))
  const { Worker } = require('..')
  await new Worker({ [queue]: () => { throw new Error('x') } }, { signals: false, logger: { info: log, warn: log, error: log } }).run({ drain: true })
  assert.ok((await Promise.all(written)).length >= 2)
})

test('a payload whose toJSON makes a call', async (t) => {
  const c = client(t)
  const queue = queueName()
  let inner
  await c.enqueue(queue, { toJSON: () => ((inner = c.enqueue(queue, 'inner')), 'outer') })
  await inner
  assert.deepEqual((await c.claim(queue, { max: 2 })).map((job) => job.payload), ['inner', 'outer'])
})

test('threads: a client of their own, and the handlers of their exit', async (t) => {
  const queue = queueName()
  const dir = folder(t, {
    'worker.js': `
      const { Client, Worker } = require(process.env.QSIDECAR_PACKAGE)
      const own = new Client({ requestTimeoutMs: 120000 })
      module.exports = new Worker({ '${queue}': async (job) => {
        await own.enqueue('${queue}-more', 'own')
        await module.exports.client.enqueue('${queue}-more', "the worker's")
        process.on('exit', () => { try { own.ping() } catch (e) { require('node:fs').writeSync(1, e.code + ' ' + e.message) } })
        process.exit(0)
      }}, {requestTimeoutMs: 120000})`,
  })
  const c = client(t)
  await c.enqueue(queue, 1, { maxAttempts: 1 })
  const { code, output } = await node(t, [PROGRAM, 'work', path.join(dir, 'worker.js'), '--threads', '1', '--drain']).ended
  assert.equal(code, 0, output)
  assert.match(output, /closed ping was not sent/)
  assert.deepEqual((await c.claim(`${queue}-more`, { max: 5 })).map((job) => job.payload), ['own', "the worker's"])
})

test('child processes and workers of a cluster have a connection of their own', async (t) => {
  const queue = queueName()
  const file = path.join(folder(t, { 'main.js': `${BEGIN}
    const cluster = require('node:cluster')
    const { fork } = require('node:child_process')
    if (cluster.isPrimary && !process.send) {
      c.enqueue('${queue}', 'parent').then(async () => {
        const [job] = await c.claim('${queue}')
        await Promise.all([cluster.fork(), fork(__filename)].map((child) => new Promise((resolve) => child.on('exit', resolve))))
        await job.ack() // the lease of this connection has outlived the children
        console.log(job.attempt, job.settled)
        await c.close()
      }).catch(fail)
    } else {
      c.enqueue('${queue}', 'child').then(() => process.exit()).catch(fail)
    }` }), 'main.js')
  assert.deepEqual(await node(t, [file]).ended, { code: 0, signal: null, output: '1 true\n' })
  assert.equal((await client(t).claim(queue, { max: 5 })).length, 2)
})
