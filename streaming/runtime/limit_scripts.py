"""The scripts that keep limits in Redis, so that all gateway processes count as one.

Each is atomic, takes the time from Redis, and does what ``core.gcra`` and ``core.local_limits`` say.
Everything they keep expires by itself.

    unbroken:limits:rate:<requests|tokens>.<scope>   when the bucket will be empty again (µs)
    unbroken:limits:slots:<scope>                    sorted set: session → when its lease ends (µs)
    unbroken:limits:queue:<tenant>                   sorted set: session → its turn
    unbroken:limits:turns:<tenant>                   hash: the last turn of each end user, and now:<level>
    unbroken:limits:session:<session>                hash: what the session counts against
"""

from __future__ import annotations

PREFIX = "unbroken:limits:"

_NOW = """
local P = 'unbroken:limits:'
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local MINUTE = 60000000
local function level_of(key)
  return math.max(tonumber(redis.call('GET', key) or 0) - now, 0)
end
local function set_level(key, level)
  redis.call('SET', key, string.format('%.0f', now + level), 'PX', math.ceil(level / 1000) + 1000)
end
local function each(scopes, act)
  for name, limit in string.gmatch(scopes, '(%S+)=(%d+)') do act(name, tonumber(limit)) end
end
"""

ADMIT = (
    _NOW
    + """
-- KEYS: buckets. ARGV: for each its limit and what to take. Returns admitted, now, each level.
local admitted, levels = 1, {}
for i, key in ipairs(KEYS) do
  local per_minute = tonumber(ARGV[2 * i - 1])
  levels[i] = level_of(key)
  if per_minute <= 0 or levels[i] + math.floor(MINUTE / per_minute) > MINUTE then admitted = 0 end
end
if admitted == 1 then
  for i, key in ipairs(KEYS) do
    local amount = tonumber(ARGV[2 * i])
    if amount > 0 then
      levels[i] = levels[i] + math.floor(amount * MINUTE / tonumber(ARGV[2 * i - 1]))
      set_level(key, levels[i])
    end
  end
end
return {admitted, now, unpack(levels)}
"""
)

GIVE_BACK = (
    _NOW
    + """
-- KEYS: buckets. ARGV: for each its limit and what to give back.
for i, key in ipairs(KEYS) do
  local level = level_of(key) - math.floor(ARGV[2 * i] * MINUTE / ARGV[2 * i - 1])
  if level > 0 then set_level(key, level) else redis.call('DEL', key) end
end
return now
"""
)

DEBIT = (
    _NOW
    + """
-- ARGV: seconds that a session is remembered; then session, base, mark, scopes. A session is debited up
-- to its mark and no token of it twice, whoever tells. Returns the sessions that nobody knows.
local unknown = {}
for i = 2, #ARGV, 4 do
  local key = P .. 'session:' .. ARGV[i]
  local found = redis.call('HMGET', key, 'tokens', 'seen')
  local scopes, seen = found[1] or '', tonumber(found[2] or ARGV[i + 1])
  if scopes == '' then scopes = ARGV[i + 3] end
  if scopes == '' then
    if not found[1] then unknown[#unknown + 1] = ARGV[i] end
  else
    local more = tonumber(ARGV[i + 2]) - seen
    if more > 0 then
      each(scopes, function(name, per_minute)
        if per_minute > 0 then
          local bucket = P .. 'rate:tokens.' .. name
          set_level(bucket, level_of(bucket) + math.floor(more * MINUTE / per_minute))
        end
      end)
      seen = seen + more
    end
    redis.call('HSET', key, 'seen', seen, 'tokens', scopes)
    redis.call('EXPIRE', key, ARGV[1])
  end
end
return unknown
"""
)

QUEUE = (
    _NOW
    + """
-- ARGV: tenant, lease of a slot (µs), lease of a place in the queue (µs), places, seconds that a session
-- is remembered; then session, user, level, slots, tokens, whether new. Returns 1, 0 or -1 for each.
local tenant, slot_lease, place_lease, places = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local queue, turns = P .. 'queue:' .. tenant, P .. 'turns:' .. tenant
local function record(id) return P .. 'session:' .. id end
local function forget(id)
  redis.call('ZREM', queue, id)
  redis.call('DEL', record(id))
end
local mine = {}
for i = 6, #ARGV, 6 do
  local id, user, rank, slots = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  mine[#mine + 1] = id
  local known = redis.call('EXISTS', record(id)) == 1
  if ARGV[i + 5] == '1' and not known then
    local who = user .. ':' .. rank
    local last = tonumber(redis.call('HGET', turns, who) or 0)
    local turn = math.max(tonumber(redis.call('HGET', turns, 'now:' .. rank) or 0), last + 1)
    redis.call('HSET', turns, who, turn)
    redis.call('HSET', record(id), 'user', user, 'rank', rank, 'slots', slots, 'tokens', ARGV[i + 4],
      'tenant', tenant, 'seen', 0)
    redis.call('ZADD', queue, rank * 1000000000000 + turn, id)
    known = true
  end
  if known then
    redis.call('HSET', record(id), 'until', string.format('%.0f', now + place_lease))
    redis.call('EXPIRE', record(id), ARGV[5])
  end
end
local looked_at = {}
local function is_full(name, limit)
  local key = P .. 'slots:' .. name
  if not looked_at[name] then
    looked_at[name] = true
    redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
  end
  return redis.call('ZCARD', key) >= limit
end
for _, id in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  local found = redis.call('HMGET', record(id), 'slots', 'until', 'rank')
  if not found[1] or tonumber(found[2]) < now then
    forget(id)
  else
    local fits = true
    each(found[1], function(name, limit) if is_full(name, limit) then fits = false end end)
    if fits then
      each(found[1], function(name)
        redis.call('ZADD', P .. 'slots:' .. name, string.format('%.0f', now + slot_lease), id)
        redis.call('PEXPIRE', P .. 'slots:' .. name, math.ceil(slot_lease / 500))
      end)
      local turn = redis.call('ZSCORE', queue, id) - found[3] * 1000000000000
      redis.call('HSET', turns, 'now:' .. found[3], string.format('%.0f', turn))
      redis.call('HSET', record(id), 'granted', 1)
      redis.call('ZREM', queue, id)
    end
  end
end
while redis.call('ZCARD', queue) > places do  -- of those that wait the most, the last one goes
  local waiting, counts, users, most = redis.call('ZRANGE', queue, 0, -1), {}, {}, 0
  for i, id in ipairs(waiting) do
    users[i] = redis.call('HGET', record(id), 'user') or ''
    counts[users[i]] = (counts[users[i]] or 0) + 1
    most = math.max(most, counts[users[i]])
  end
  local last = #waiting
  while counts[users[last]] < most do last = last - 1 end
  forget(waiting[last])
end
redis.call('EXPIRE', queue, ARGV[5])
redis.call('EXPIRE', turns, ARGV[5])
if redis.call('EXISTS', queue) == 0 then redis.call('DEL', turns) end
local answer = {}
for i, id in ipairs(mine) do
  local found = redis.call('HMGET', record(id), 'granted', 'until')
  answer[i] = found[1] and 1 or (found[2] and 0 or -1)
end
return answer
"""
)

RENEW = (
    _NOW
    + """
-- ARGV: lease (µs), seconds that a session is remembered; then session, slots, tokens (both empty: as it
-- began). Slots are kept whatever their number: they were granted before. Returns who is not known.
local unknown = {}
local ends = string.format('%.0f', now + ARGV[1])
for i = 3, #ARGV, 3 do
  local key = P .. 'session:' .. ARGV[i]
  local slots, tokens = ARGV[i + 1], ARGV[i + 2]
  local found = redis.call('HMGET', key, 'slots', 'tokens')
  if slots == '' and tokens == '' then
    slots, tokens = found[1] or '', found[2] or ''
    if not found[1] and not found[2] then unknown[#unknown + 1] = ARGV[i] end
  elseif not found[1] then  -- Redis has forgotten it, or not heard of it
    redis.call('HSET', key, 'slots', slots, 'tokens', tokens, 'granted', 1)
  end
  each(slots, function(name)
    redis.call('ZADD', P .. 'slots:' .. name, ends, ARGV[i])
    redis.call('PEXPIRE', P .. 'slots:' .. name, math.ceil(ARGV[1] / 500))
  end)
  if slots ~= '' or tokens ~= '' then redis.call('EXPIRE', key, ARGV[2]) end
end
return unknown
"""
)

RELEASE = (
    _NOW
    + """
-- ARGV: session, whether to forget it. Its delivered tokens may count later.
for i = 1, #ARGV, 2 do
  local key = P .. 'session:' .. ARGV[i]
  local found = redis.call('HMGET', key, 'slots', 'tenant')
  each(found[1] or '', function(name) redis.call('ZREM', P .. 'slots:' .. name, ARGV[i]) end)
  if found[2] then redis.call('ZREM', P .. 'queue:' .. found[2], ARGV[i]) end
  if ARGV[i + 1] == '1' then redis.call('DEL', key) end
end
return now
"""
)
