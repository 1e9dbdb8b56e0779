'use strict'

const { spawn } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { after } = require('node:test')

const { Client } = require('..')

const PACKAGE = path.dirname(__dirname)
const quiet = { info() {}, warn() {}, error() {} }

// A client that waits for nothing doesn't keep the process alive, and some tests wait for an event.
const alive = setInterval(() => {}, 2 ** 30)
after(() => clearInterval(alive))

let queues = 0

/** Returns the name of a queue that no other test uses. */
function queueName() {
  return `t${process.pid}-${++queues}`
}

/** Returns a client that is closed after the test. */
function client(t, options = {}) {
  const c = new Client({ requestTimeoutMs: 120_000, logger: quiet, ...options })
  t.after(() => c.close())
  return c
}

/** Returns a folder that is removed after the test. */
function folder(t, files = {}) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'qsn-'))
  t.after(() => fs.rmSync(dir, { recursive: true, force: true }))
  for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(dir, name), text)
  return dir
}

/** Runs Node with a program, and returns its exit code and its output. said waits for a text in the output. */
function node(t, args, { env = {}, ...options } = {}) {
  const child = spawn(process.execPath, args, { env: { ...process.env, QSIDECAR_PACKAGE: PACKAGE, ...env }, ...options })
  t.after(() => child.kill('SIGKILL'))
  let output = ''
  const waits = new Map() // what to call, by the text that is waited for
  const add = (data) => {
    output += data
    for (const [text, resolve] of waits) if (output.includes(text)) resolve()
  }
  child.stdout.on('data', add)
  child.stderr.on('data', add)
  const ended = new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal, output })))
  const said = (text) => new Promise((resolve) => (output.includes(text) ? resolve() : waits.set(text, resolve)))
  return { child, ended, said }
}

/** Returns the end of a program. */
const run = (t, program, options) => node(t, ['-e', program], options).ended

/** Returns a promise and the functions that settle it. */
function deferred() {
  let resolve
  const promise = new Promise((done) => (resolve = done))
  return { promise, resolve }
}

module.exports = { PACKAGE, quiet, queueName, client, folder, node, run, deferred }
