'use strict'
// One connection: the path of its socket, its frames, and what is written when.

const fs = require('node:fs')
const net = require('node:net')
const path = require('node:path')

// The largest reply: 8 times max_frame, which is at most 64 MiB. base64 adds a third.
const MAX_REPLY = 3 * 8 * (64 << 20) / 2
// How many characters of frames are written at once.
const BATCH = 64 << 10
// How long the sidecar can read nothing while the client writes, in milliseconds.
const STALLED = 30_000
// The longest path of a socket, in bytes. Linux has 108 with the final zero, other systems 104.
const LONGEST_PATH = process.platform === 'linux' ? 107 : 103

/** Returns the paths of a sidecar's socket to try if the caller doesn't name one, in order. */
function sockets() {
  const env = process.env
  if (env.QSIDECAR_SOCKET) return [env.QSIDECAR_SOCKET]
  const root = process.geteuid() === 0
  const found = []
  const runtime = env.XDG_RUNTIME_DIR
  if (runtime && !(root && [runtime, path.join(runtime, 'qsidecar')].some(foreign))) {
    found.push(path.join(runtime, 'qsidecar', 'qsidecar.sock'))
  }
  const state = env.XDG_STATE_HOME || (env.HOME && path.join(env.HOME, '.local', 'state'))
  if (state && !root && stat(path.join(state, 'qsidecar'))?.isDirectory()) {
    found.push(path.join(state, 'qsidecar', 'qsidecar.sock'))
  }
  return [...found, '/run/qsidecar/qsidecar.sock']
}

/** Throws if a path is written as a URL, or as a host and a port. No socket has such a name, and the system would only report that. */
function checkPath(socket) {
  const [url, file] = /^(?:unix:(?:\/\/)?(.*)|[a-z][a-z0-9+.-]*:\/\/.*|[^/]+:[0-9]+$)/i.exec(socket) ?? []
  if (url !== undefined) throw new TypeError(`the socket ${socket} is not a path: write ${file || '/run/qsidecar/qsidecar.sock'}`)
  if (String(socket).startsWith('~')) throw new TypeError(`the socket ${socket}: ~ isn't replaced here: write the whole path`)
}

/** Describes an error of a path. The system reports a file or a folder as a socket on which nothing listens. */
function whyNot(socket, error) {
  const found = stat(socket)
  if (found?.isDirectory()) return 'it is a folder: name the socket in it'
  if (found?.isFile()) return 'it is a file, and not a socket'
  return error.message
}

/** Returns whether another user than root owns the directory. That user could serve a socket of its own there. */
function foreign(directory) {
  const found = stat(directory)
  return found !== undefined && found.uid !== 0
}

function stat(file) {
  try {
    return fs.statSync(file)
  } catch {
    return undefined
  }
}

const NOT_LISTENING = new Set([
  'ENOENT', 'ENOTDIR', 'ELOOP', 'ECONNREFUSED', 'EACCES', 'EPERM', 'EPROTOTYPE', 'ENOTSOCK', 'EINVAL', 'ENAMETOOLONG',
])

/** Returns whether no sidecar that this process can reach listens on a socket. A client then tries the next path. */
function notListening(error) {
  return NOT_LISTENING.has(error.code)
}

/** Splits what the sidecar sends into lines. A reply can arrive in pieces, and one piece can have several replies. */
class Lines {
  #parts = []
  #size = 0

  /** Returns the whole lines that end in the text. */
  add(text) {
    const lines = text.split('\n')
    const rest = lines.pop()
    if (lines.length > 0) {
      lines[0] = this.#parts.join('') + lines[0]
      this.#parts = []
      this.#size = 0
    }
    if (rest !== '') {
      this.#parts.push(rest)
      this.#size += rest.length
      if (this.#size > MAX_REPLY) throw new Error('a line without an end')
    }
    return lines
  }
}

/**
 * A connection. `onMessage` gets each message, `onEnd` the reason of the end, once.
 *
 * It hands one batch of frames at a time to the system. So a call whose time is over is either in that batch, or
 * certainly not sent.
 */
class Wire {
  #socket
  #lines = new Lines()
  #pending = [] // calls to write, each with its frame
  #scheduled = false
  #batch // the calls that are being written, and their size
  #stalled
  #ended = false

  constructor(socketPath, { onConnect, onMessage, onEnd }) {
    this.since = performance.now()
    this.onMessage = onMessage
    this.onEnd = onEnd
    if (Buffer.byteLength(socketPath) > LONGEST_PATH) {
      const error = new Error(`connect ENAMETOOLONG ${socketPath}`)
      error.code = 'ENAMETOOLONG'
      process.nextTick(() => this.end(error))
      return
    }
    // The system's library opens it close-on-exec. A child that outlives a worker must not keep its jobs.
    this.#socket = net.createConnection({ path: socketPath })
    this.#socket.setEncoding('utf8')
    this.#socket.on('connect', onConnect)
    this.#socket.on('data', (text) => this.#received(text))
    this.#socket.on('error', (error) => this.end(error))
    this.#socket.on('end', () => this.end(new Error('the sidecar closed the connection')))
    this.#socket.on('close', () => this.end(new Error('the connection was closed')))
    this.limit(STALLED)
  }

  ref() {
    this.#socket?.ref()
  }

  unref() {
    this.#socket?.unref()
  }

  /** Ends the connection after that time, unless `unlimited` is called before. */
  limit(ms) {
    clearTimeout(this.#stalled)
    this.#stalled = setTimeout(() => this.end(new Error(`no answer for ${ms / 1000} s`)), ms).unref()
  }

  unlimited() {
    clearTimeout(this.#stalled)
  }

  #received(text) {
    let lines
    try {
      lines = this.#lines.add(text)
    } catch (e) {
      return this.end(e)
    }
    for (const line of lines) {
      if (this.#ended) return
      if (line.trim() === '') continue
      let message
      try {
        message = JSON.parse(line)
        if (message === null || typeof message !== 'object' || Array.isArray(message)) throw new Error('no JSON object')
      } catch (e) {
        return this.end(new Error(`the reply isn't from a sidecar: ${e.message}`))
      }
      this.onMessage(message)
    }
  }

  /** Writes a frame soon, together with those of other calls of this turn of the event loop. */
  send(call, frame) {
    this.#pending.push({ call, frame })
    if (!this.#scheduled && !this.#batch) {
      this.#scheduled = true
      process.nextTick(() => {
        this.#scheduled = false
        this.#write()
      })
    }
  }

  #write() {
    if (this.#ended || this.#batch) return
    const entries = []
    let text = ''
    let taken = 0
    for (const entry of this.#pending) {
      if (taken > 0 && text.length + entry.frame.length > BATCH) break
      taken++
      if (entry.call.dropped) continue
      entry.call.sent = true
      text += entry.frame
      entries.push(entry)
    }
    this.#pending.splice(0, taken)
    if (entries.length === 0) return
    const batch = { entries }
    this.#batch = batch
    this.#socket.write(text, () => {
      clearTimeout(batch.timer)
      this.#batch = undefined
      if (this.#pending.length > 0) this.#write()
    })
    if (this.#socket.writableLength > 0) this.#watch(batch, undefined)
  }

  /** Ends the connection if the sidecar reads nothing for a long time. */
  #watch(batch, before) {
    const left = this.#left()
    if (before !== undefined && left === before) {
      return this.end(new Error(`the sidecar has read nothing for ${STALLED / 1000} s`))
    }
    batch.timer = setTimeout(() => this.#batch === batch && this.#watch(batch, left), STALLED).unref()
  }

  /** Returns how many bytes of the batch are not written, or undefined if the runtime doesn't report it. */
  #left() {
    return this.#socket._handle?.writeQueueSize
  }

  /** Returns whether the call is in the batch that is being written. */
  writing(call) {
    return this.#batch?.entries.some((entry) => entry.call === call) === true
  }

  /**
   * Marks the calls of the batch as unsent whose frames the system does not have completely. It applies if the
   * connection ends now. The sidecar accepts a line without its newline.
   */
  forgetUnwritten() {
    let left = this.#left()
    if (left === undefined) return
    for (const { call, frame } of this.#batch.entries.toReversed()) {
      if (left > 1) call.sent = false
      left -= Buffer.byteLength(frame)
    }
  }

  end(why) {
    if (this.#ended) return
    this.#ended = true
    clearTimeout(this.#stalled)
    clearTimeout(this.#batch?.timer)
    this.#socket?.destroy()
    this.onEnd(why)
  }
}

module.exports = { Wire, sockets, checkPath, notListening, whyNot }
