'use strict'
// Checks of what callers pass. An error of the sidecar would name the field of the wire, and JavaScript ignores what
// it doesn't know, so that `{delay: 5}` would be a job without a delay.

const { inspect, types } = require('node:util')
const { isUtf8 } = require('node:buffer')

const YEARS_10 = 10 * 366 * 86_400_000
// The limits of the protocol, in milliseconds, by the names that the functions have for them.
const SPANS = {
  delayMs: [0, YEARS_10],
  timeoutMs: [1, YEARS_10],
  startWithinMs: [1, YEARS_10],
  retainMs: [1, YEARS_10],
  debounceMaxMs: [1, YEARS_10],
  leaseMs: [1000, 86_400_000],
  waitMs: [0, 3_600_000],
  requestTimeoutMs: [1, Infinity],
  everyMs: [1000, 366 * 86_400_000],
  splayMs: [1000, 86_400_000],
}

const show = (value) => inspect(value, { depth: 1, breakLength: Infinity, maxStringLength: 80 })

/** Checks that an argument is an object with known options only. */
function options(what, given, known) {
  if (given === null || typeof given !== 'object' || Array.isArray(given)) {
    throw new TypeError(`${what}: pass the options as an object, not ${show(given)}`)
  }
  for (const name in given) {
    if (!known.includes(name)) {
      throw new TypeError(`${what}: there is no option ${name}; the options are ${known.join(', ')}`)
    }
  }
  return given
}

/** Returns options of which at least one is given. */
function changes(what, given, known) {
  if (Object.keys(options(what, given, known)).length === 0) throw new TypeError(`${what}: name what to change: ${known.join(', ')}`)
  return given
}

/** Converts a time span to whole milliseconds, rounded up so that a short wait does not become none. */
function millis(what, name, value) {
  const [least, most] = SPANS[name]
  if (typeof value !== 'number' || !(value >= least && value <= most)) {
    const range = most === Infinity ? `from ${least} on` : `from ${least} to ${most}`
    throw new (typeof value === 'number' ? RangeError : TypeError)(
      `${what}: ${name} is ${show(value)}, must be a number of milliseconds ${range}`,
    )
  }
  return Math.ceil(value)
}

function text(what, name, value) {
  if (typeof value !== 'string') throw new TypeError(`${what}: ${name} is ${show(value)}, must be a string`)
  return value
}

function integer(what, name, value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new (typeof value === 'number' ? RangeError : TypeError)(
      `${what}: ${name} is ${show(value)}, must be an integer from ${least} to ${most}`,
    )
  }
  return value
}

/** Returns an instant as milliseconds since 1970. */
function instant(what, name, value) {
  const at = value instanceof Date ? value.getTime() : value
  if (typeof at !== 'number' || !Number.isFinite(at)) {
    throw new TypeError(`${what}: ${name} is ${show(value)}, must be a Date or milliseconds since 1970`)
  }
  return Math.ceil(at)
}

function strings(what, name, value) {
  if (value === null || typeof value !== 'object' || Array.isArray(value) || value instanceof Map) {
    throw new TypeError(`${what}: ${name} is ${show(value)}, must be an object of strings`)
  }
  for (const key of Object.keys(value)) text(what, `${name}.${key}`, value[key])
  return value
}

/** Returns a list of queue names. */
function queueNames(what, value) {
  const names = typeof value === 'string' ? [value] : value
  if (!Array.isArray(names) || names.length === 0) {
    throw new TypeError(`${what}: queues is ${show(value)}, must be the name of a queue or a list of names`)
  }
  names.forEach((name, i) => text(what, typeof value === 'string' ? 'queue' : `queues[${i}]`, name))
  return names
}

/**
 * Returns a payload or result as the wire has it: the JSON text of a value, or bytes unchanged. Undefined if there is
 * none: null and no payload are the same for all clients.
 */
function dump(what, name, value) {
  if (value === undefined || value === null) return undefined
  if (value instanceof Uint8Array) return value
  const lossy = lossyType(value)
  if (lossy) throw new TypeError(`${what}: ${name} is ${lossy}`)
  let json
  try {
    json = typeof value === 'object' ? JSON.stringify(value, lossless(what, name)) : JSON.stringify(value)
  } catch (e) {
    if (!(e instanceof TypeError || e instanceof RangeError) || e.message.startsWith(what)) throw e // of a toJSON, or of lossless
    throw new TypeError(`${what}: ${name} can't be JSON: ${e.message}`, { cause: e })
  }
  if (json === undefined) throw new TypeError(`${what}: ${name} is ${show(value)}, which isn't a JSON value`)
  return json
}

/** Returns a function for JSON.stringify that rejects lossy values inside of others. */
function lossless(what, name) {
  return function (key, json) {
    const value = this[key] // before toJSON
    const lossy = value === null || value === undefined || typeof value.toJSON === 'function' ? '' : lossyType(value)
    if (lossy) throw new TypeError(`${what}: ${name} has ${show(key)}, which is ${lossy}`)
    return json
  }
}

/** Names a value that JSON.stringify would turn into something else. */
function lossyType(value) {
  if (typeof value === 'number' && !Number.isFinite(value)) return `${value}, which isn't a JSON value`
  if (typeof value === 'bigint' && typeof value.toJSON !== 'function') return 'a BigInt, which JSON lacks: convert it'
  if (typeof value !== 'object') return ''
  if (typeof value.then === 'function') return 'a promise: await it'
  if (value instanceof Map || value instanceof Set) return `a ${value.constructor.name}, which JSON lacks: convert it`
  if (types.isAnyArrayBuffer(value) || ArrayBuffer.isView(value)) return 'binary: pass bytes as a Buffer or Uint8Array'
  return ''
}

/** Sets a bytes field in a form that JSON has: text if it is UTF-8, otherwise base64. */
function setBytes(fields, name, data) {
  if (data === undefined) return
  if (typeof data === 'string') {
    fields[name] = data
  } else if (isUtf8(data)) {
    fields[name] = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString()
  } else {
    fields[`${name}_b64`] = Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString('base64')
  }
}

module.exports = { options, changes, millis, text, integer, instant, strings, queueNames, dump, setBytes, show }
