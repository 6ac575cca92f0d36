// Acquires and releases one lock of a Node.js library: driver.js LIBRARY PORTS NAME TTL
// It takes the commands of driver.py.
'use strict'

const fs = require('fs')
const readline = require('readline')
const Redis = require('ioredis')
const Redlock = require('redlock').default
const { Mutex } = require('redis-semaphore')

const [library, address, name, seconds] = process.argv.slice(2)
const ttl = Number(seconds) * 1000
const clients = address.split(',').map((port) => new Redis({ port: Number(port) }))
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

const RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

const KINDS = {
  redlock() {
    const redlock = new Redlock(clients, { retryCount: 0, automaticExtensionThreshold: 100 })
    redlock.on('error', () => {})
    let held
    return {
      async attempt() {
        held = await redlock.acquire([name], ttl).catch((error) => {
          if (error.name === 'ExecutionError') return undefined
          throw error
        })
        return held !== undefined
      },
      release: () => held.release(),
    }
  },

  'redis-semaphore'() {
    const mutex = () => new Mutex(clients[0], name, { lockTimeout: ttl, acquireAttemptsLimit: 1, refreshInterval: 0 })
    let held
    return {
      async attempt() {
        held = mutex()
        return held.tryAcquire()
      },
      release: () => held.release(),
    }
  },

  // Not a lock library, but the way many programs use Redis.
  'set-nx'() {
    let token
    return {
      async attempt() {
        token = String(Math.random())
        return (await clients[0].set(name, token, 'PX', ttl, 'NX')) === 'OK'
      },
      release: () => clients[0].eval(RELEASE, 1, name, token),
    }
  },
}

async function wait(lock) {
  for (const until = Date.now() + 30000; Date.now() < until; await sleep(50)) {
    if (await lock.attempt()) return true
  }
  return false
}

async function race(lock, seconds, path) {
  let counted = 0
  for (const until = Date.now() + seconds * 1000; Date.now() < until; await sleep(1 + Math.random() * 40)) {
    if (!(await lock.attempt())) continue
    const count = Number(fs.readFileSync(path, 'utf8'))
    await sleep(5)
    fs.writeFileSync(path, String(count + 1))
    await lock.release()
    counted += 1
  }
  return counted
}

async function answer(lock, [word, ...rest]) {
  if (word === 'race') return `counted ${await race(lock, Number(rest[0]), rest[1])}`
  try {
    if (word === 'release') {
      await lock.release()
      return 'free'
    }
    return (await (word === 'lock' ? wait(lock) : lock.attempt())) ? 'held' : 'busy'
  } catch (error) {
    console.error(error)
    return `raised ${error.name}`
  }
}

async function main() {
  const lock = KINDS[library]()
  console.log('ready')
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await answer(lock, line.trim().split(' ')))
  }
  process.exit(0)
}

main()
