#!/usr/bin/env node
'use strict'

const { existsSync, statSync } = require('node:fs')
const path = require('node:path')
const { pathToFileURL } = require('node:url')
const { parseArgs } = require('node:util')

const { ORDERS } = require('../lib/client.js')
const { load } = require('../lib/load.js')
const { ACKS, exitCode } = require('../lib/worker.js')

const HELP = `usage: qsidecar-node work FILE [OPTIONS]

Works the jobs of the Worker that FILE exports as its default, until SIGTERM, which lets the jobs under way finish.

  -j, --concurrency N   so many jobs at once (default: 8, or the worker's option)
  -q, --queue NAME[=N]  work this queue of the worker, with N jobs at once of its own; can be repeated
                        (default: all, which share -j)
  --threads N           run the jobs in N threads, for jobs that compute
  --drain               end when nothing is ready and the own jobs are done
  --order ORDER         rotate: queues that share -j take turns; strict: in their order (default: rotate)
  --weights NAME=N,…    turns of queues where the others have one, as mail=3,bulk=1 (default: all 1)
  --ack behind|sync     sync: wait for each ack before the next job (default: behind)
  -h, --help            print this text

Exit codes: 0 it was stopped or has drained, 1 it cannot go on or got a second signal, 2 wrong arguments, 5 the sidecar
or its database is away (--drain), or was for a minute when the worker ended.
`

class Usage extends Error {}

function count(name, value) {
  if (value === undefined) return undefined
  if (!/^[1-9][0-9]{0,4}$/.test(value)) throw new Usage(`${name} is ${value}, must be a number from 1 on`)
  return Number(value)
}

function queuesOf(given) {
  if (given === undefined) return undefined
  return Object.fromEntries(
    given.map((each) => {
      const [, name, number] = /^([^=]+)(?:=(.*))?$/.exec(each) ?? []
      if (name === undefined) throw new Usage(`--queue is ${each}, must be a queue, or a queue and how many of its jobs run at once: mail=8`)
      if (name.includes(',')) throw new Usage(`--queue is ${each}: name each queue with a --queue of its own`)
      return [name, count(`--queue ${name}`, number)]
    }),
  )
}

function weightsOf(given) {
  if (given === undefined) return undefined
  const pairs = given.split(',').map((item) => {
    const [, name, number] = /^\s*([^=]+)=([1-9][0-9]*)\s*$/.exec(item) ?? []
    if (name === undefined) throw new Usage(`--weights is ${given}, must be queues with numbers: mail=3,bulk=1`)
    return [name, Number(number)]
  })
  return Object.fromEntries(pairs)
}

function parsed(args) {
  let found
  try {
    found = parseArgs({
      args,
      allowPositionals: true,
      options: {
        concurrency: { type: 'string', short: 'j' },
        queue: { type: 'string', short: 'q', multiple: true },
        threads: { type: 'string' },
        drain: { type: 'boolean' },
        ack: { type: 'string' },
        order: { type: 'string' },
        weights: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    })
  } catch (e) {
    const [, option] = /^Unknown option '(.+?)'/.exec(e.message) ?? []
    if (option === undefined) throw new Usage(e.message)
    const hint = ['-c', '--jobs', '--workers'].includes(option) ? 'did you mean -j (--concurrency)?' : 'qsidecar-node --help lists the options'
    throw new Usage(`there is no option ${option}: ${hint}`)
  }
  const { values, positionals } = found
  if (values.help) return { help: true }
  const [command, file, ...more] = positionals
  if (command !== 'work' || file === undefined || more.length > 0) throw new Usage('name the file of the worker: qsidecar-node work ./worker.js')
  if (values.ack !== undefined && !ACKS.includes(values.ack)) throw new Usage(`--ack is ${values.ack}, must be one of ${ACKS.join(', ')}`)
  if (values.order !== undefined && !ORDERS.includes(values.order)) throw new Usage(`--order is ${values.order}, must be one of ${ORDERS.join(', ')}`)
  const chosen = {
    concurrency: count('--concurrency', values.concurrency),
    queues: queuesOf(values.queue),
    threads: count('--threads', values.threads),
    drain: values.drain,
    ack: values.ack,
    order: values.order,
    weights: weightsOf(values.weights),
  }
  return { file, chosen: Object.fromEntries(Object.entries(chosen).filter(([, value]) => value !== undefined)) }
}

const line = (level) => (text) => process.stderr.write(`${new Date().toISOString()} ${level} ${text}\n`)
const logger = { info: line('info'), warn: line('warn'), error: line('error') }

async function main() {
  const { help, file, chosen } = parsed(process.argv.slice(2))
  if (help) return void process.stdout.write(HELP)
  const full = path.resolve(file)
  if (!existsSync(full)) throw new Usage(`there is no file ${full}`)
  if (statSync(full).isDirectory()) throw new Usage(`${full} is a folder: name a file in it`)
  const module = pathToFileURL(full).href
  const worker = await load(module).catch((e) => {
    if (e.code !== 'ERR_UNKNOWN_FILE_EXTENSION') throw e
    throw new Usage(`${e.message}; compile TypeScript to JavaScript, or run node --import tsx node_modules/.bin/qsidecar-node work ${file}`)
  })
  if (typeof worker?.run !== 'function' || !(worker.jobs instanceof Map)) {
    throw new Usage(`${file} doesn't export a Worker as its default: write "export default new Worker({...})", or module.exports = new Worker({...})`)
  }
  try {
    worker._shares(chosen)
  } catch (e) {
    throw new Usage(e.message)
  }
  await worker.run({ logger, module, ...chosen })
}

main().then(
  () => process.exit(0), // although the worker's module has connections or timers of its own
  (error) => {
    if (error instanceof Usage) {
      process.stderr.write(`qsidecar-node: ${error.message}\n`)
      process.exit(2)
    }
    const expected = typeof error?.code === 'string' && error.constructor.code !== undefined
    process.stderr.write(`qsidecar-node: ${expected ? error.message : (error?.stack ?? error)}\n`)
    process.exit(exitCode(error))
  },
)
