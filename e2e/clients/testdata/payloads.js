// Enqueues a payload of each type in queues, or prints the payloads of queues. Usage: payloads.js enqueue|read QUEUE…

const { Client } = require('../../../clients/node')

async function main(what, ...queues) {
  const client = new Client()
  for (const queue of queues) {
    if (what === 'enqueue') {
      for (const value of ['Zoë, "☎"\n', 17, { to: ['ada', 1.5, null] }, null, Buffer.from([0xff, 0xfe])]) {
        await client.enqueue(queue, value)
      }
      continue
    }
    for (const job of await client.claim(queue, { max: 10 })) {
      try {
        console.log(JSON.stringify({ queue, value: job.payload }))
      } catch (e) {
        console.log(JSON.stringify({ queue, bytes: job.raw.toString('hex'), error: e.message }))
      }
      await job.ack()
    }
  }
  await client.close()
}

main(...process.argv.slice(2))
