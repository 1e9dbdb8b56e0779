'use strict'

const { options, text } = require('./arguments')
const { start } = require('./call')
const { newJobFields } = require('./job')
const { waitForBatch } = require('./waiting')

const BATCH_OPTIONS = ['onSuccess', 'onFinish', 'key', 'of', 'requestTimeoutMs']
const CALLBACK = ['queue', 'payload', 'priority', 'headers', 'maxAttempts', 'timeoutMs', 'group']

/** A batch of jobs, which `client.batch` opened. */
class Batch {
  #client
  #queue

  constructor(client, queue, id) {
    this.#client = client
    this.#queue = queue
    this.id = id
  }

  enqueue(queue, payload, given = {}) {
    return this.#client.enqueue(queue, payload, { ...given, batch: this.id })
  }

  enqueueMany(jobs, given = {}) {
    return this.#client.enqueueMany(jobs.map((job) => ({ ...job, batch: this.id })), given)
  }

  async close() {
    await this.#client.request('close_batch', { queue: this.#queue, batch: this.id })
  }

  async cancel() {
    return (await this.#client.request('cancel_batch', { queue: this.#queue, batch: this.id })).count
  }

  wait(given = {}) {
    return start('wait', () => waitForBatch(this.#client, this.#queue, this.id, given))
  }
}

/** Returns the fields of a new batch. */
function batchFields(given) {
  const what = 'batch'
  options(what, given, BATCH_OPTIONS)
  const { onSuccess, onFinish, key, of } = given
  if ((onSuccess === undefined) === (onFinish === undefined)) throw new TypeError('batch: give onSuccess or onFinish, the callback')
  const callback = onSuccess ?? onFinish
  options(what, callback, CALLBACK)
  const fields = { ...newJobFields(what, callback.queue, callback.payload, callback), on: onSuccess === undefined ? 'finish' : 'success' }
  if (key !== undefined) fields.key = text(what, 'key', key)
  if (of !== undefined) fields.batch = text(what, 'of', of)
  return fields
}

module.exports = { Batch, batchFields }
