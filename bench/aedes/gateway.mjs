// A peer of the benchmark: MQTT in, acknowledged once a Redis stream has the message, and out over WebSocket.
// Arguments: the ports of MQTT, of the WebSocket and of Redis. Written as the documentation of each package shows it.
import { createServer } from 'node:net'

import { Aedes } from 'aedes'
import { Redis } from 'ioredis'
import { WebSocketServer } from 'ws'

const [mqttPort, websocketPort, redisPort] = process.argv.slice(2).map(Number)
const STREAM = 'telemetry'
const writer = new Redis({ port: redisPort, enableAutoPipelining: true })
const reader = new Redis({ port: redisPort })
const sockets = new WebSocketServer({ host: '127.0.0.1', port: websocketPort })

const broker = await Aedes.createBroker({
  // Called before the message goes further and before its PUBACK.
  authorizePublish (client, packet, done) {
    writer.xadd(STREAM, '*', 'topic', packet.topic, 'payload', packet.payload).then(() => done(null), done)
  }
})

function envelope ([id, [, topic, , payload]]) {
  const metadata = {
    messageId: id,
    timestamp: new Date(Number(id.slice(0, id.indexOf('-')))).toISOString(),
    topic,
    source: topic.split('/')[2],
    correlationId: null,
    messageType: 'event',
    version: '1.0'
  }
  return JSON.stringify({ metadata, payload: JSON.parse(payload) })
}

async function follow () {
  for (let last = '$'; ;) {
    const answer = await reader.xread('COUNT', 500, 'BLOCK', 1000, 'STREAMS', STREAM, last)
    if (!answer) continue
    for (const entry of answer[0][1]) {
      const text = envelope(entry)
      for (const socket of sockets.clients) socket.send(text)
      last = entry[0]
    }
  }
}

follow()
createServer(broker.handle).listen(mqttPort, '127.0.0.1')
