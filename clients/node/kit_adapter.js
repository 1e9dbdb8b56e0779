#!/usr/bin/env node
'use strict'
// Connects this client to the conformance kit (clients/kit), which sends it one command a line.

const { spawn } = require('node:child_process')
const readline = require('node:readline')
const { Client, SettledOrLost, SidecarError, UnknownOutcome } = require('./index.js')

const lost = []
const jobs = new Map()
const client = new Client({
  worker: 'kit',
  requestTimeoutMs: 60_000, // the kit breaks connections during an enqueue too
  onLost: (all) => lost.push(...all),
  logger: { info() {}, warn() {}, error() {} },
})

const bytes = (b64) => (b64 === undefined ? undefined : Buffer.from(b64, 'base64'))
const shown = (last) => last && { done: last.done, total: last.total, data_b64: last.raw.toString('base64') }

async function execute(c) {
  const job = jobs.get(c.id)
  switch (c.do) {
    case 'enqueue': {
      const options = { key: c.key, group: c.group, startWithinMs: c.start_within_ms, onExpiry: c.on_expiry, onConflict: c.on_conflict }
      const { id, duplicate, outcome } = await client.enqueue(c.queue, bytes(c.payload_b64), options)
      return { id, duplicate, outcome }
    }
    case 'claim': {
      const got = await client.claim(c.queue, { max: c.max, waitMs: c.wait_ms })
      for (const each of got) jobs.set(each.id, each)
      return {
        jobs: got.map((j) => ({ id: j.id, payload_b64: j.raw.toString('base64'), attempt: j.attempt, fence: j.fence, progress: shown(j.lastProgress) })),
      }
    }
    case 'ack':
      return void (await job.ack({ result: bytes(c.result_b64) }))
    case 'nack':
      return void (await job.nack(c.error, { delayMs: c.delay_ms, dead: c.dead }))
    case 'extend':
      return void (await job.extend({ leaseMs: c.lease_ms }))
    case 'progress':
      return void (await job.progress(c.done, c.total, bytes(c.data_b64)))
    case 'lost':
      return { ids: lost.map((job) => job.id), cancelled: lost.filter((job) => job.cancelled).map((job) => job.id) }
    case 'exec':
      return { pid: spawn('sleep', ['1000'], { stdio: 'ignore' }).pid }
    case 'close':
      return void (await client.close())
  }
}

async function answer(c) {
  let got
  try {
    got = { ok: true, ...(await execute(c)) }
  } catch (e) {
    let error = String(e)
    if (e instanceof SettledOrLost) error = 'SETTLED_OR_LOST'
    else if (e instanceof UnknownOutcome) error = e.reported ? e.code : 'UNKNOWN_OUTCOME'
    else if (e instanceof SidecarError) error = e.code
    got = { ok: false, error, message: e.message }
  }
  if (c.tag !== undefined) got.tag = c.tag
  process.stdout.write(JSON.stringify(got) + '\n')
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    const done = answer(command)
    if (command.tag === undefined) await done // others run during the commands that follow
  }
  process.exit(0)
}

main()
