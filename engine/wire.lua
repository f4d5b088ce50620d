#!lua name=octavo_1
-- The wire between web and engine: every change of a generation's state is one of these atomic calls.
--
-- A generation is `queued`, then `running` under one owner and one attempt, then ended with a status that never changes.
-- Whoever moves it without its owner (claim, cancel, end) takes the next attempt first, so that all the owner may still
-- send is refused as stale. Arguments and replies are spelled in engine/protocol.py, and only there.
--
-- Key names are made here: which queue, log and sets a call touches depends on what it reads, so they cannot be declared
-- beforehand. That is allowed outside Redis Cluster, which is refused at start. All time is Redis's own.
--
-- The first change behind a release raises LIBRARY_BUILD (protocol.py): the newest library serves the processes of two
-- releases, so each function still takes what the release before sends, and answers what that one understands.

local PREFIX = 'octavo_1_'
local STALE_MS = 3000     -- a worker without a heartbeat for so long is taken for dead
local STALLED_MS = 20000  -- so is one that holds work and has not made a step for so long
local LEASE_MS = 10000    -- a stateless call whose web process has not renewed it for so long is cancelled
local WARM_MS = 200       -- how old a head may get while it is kept for the worker that suits it best
local WARM_ROOM = 4       -- so many requests more may run where the prompt is warm (bench.routing: 2 and 8 wait longer)
local MOST_WATCHES = 1000
local FORGET_MS = 60000   -- when a dead worker that holds nothing is forgotten
local VANISHED = 'octavo:vanished'
local MOST_VANISHED = 100
local CONTROL_LENGTH = 1000
local ORPHANS = 64        -- how many a worker is handed in one call; the rest comes a second later
local AFTER_START_MS = 4000  -- so long after its own start the server holds nobody for dead: they have yet to come back
local ALONE_FROM = 2      -- so many workers in a row that died of a request, as it seems, and it runs alone
local DEAD_FROM = 5       -- three of them while it ran alone
local DEAD = 'octavo:dead'
local MOST_DEAD = 1000

local GROUP = 'workers'
local FINISHED = 'octavo:finished'
local WORKERS = 'octavo:workers'
local SERVER = 'octavo:server'
local FLOOR = '#floor'    -- a field beside the tenants in octavo:service:{model}; no tenant is called so
local ALL_BYTES, ALL_COUNT = '#bytes', '#count'  -- of all tenants together, beside them in octavo:queued_bytes:{model}

-- When all of a model's queues are full, a tenant that has less than FEW waiting still gets in, up to RESERVE times the
-- bound: others' floods do not keep it out.
local FEW = 4
local RESERVE = 1.25
local LOOK_MS = 200       -- what a look at the memory is good for: INFO costs more than the rest of an enqueue
local SERVED_MS = 1000    -- and one at the workers
local UNSERVED_TTL_S = 600
-- From SPACIOUS on of maxmemory, logs of recorded answers are kept for less and less time; from TIGHT on for SHORTEST_S.
local SPACIOUS, TIGHT, SHORTEST_S = 0.5, 0.75, 60

local function queue_key(model, tenant) return 'octavo:requests:' .. model .. ':' .. tenant end
local function backlog_key(model) return 'octavo:backlog:' .. model end
local function bytes_key(model) return 'octavo:queued_bytes:' .. model end
local function unserved_key(model) return 'octavo:unserved:' .. model end
local function service_key(model) return 'octavo:service:' .. model end
local function control_key(model) return 'octavo:control:' .. model end
local function request_key(id) return 'octavo:request:' .. id end
local function log_key(id) return 'octavo:generation:' .. id end
local function held_key(worker) return 'octavo:held:' .. worker end
local function worker_key(worker) return 'octavo:worker:' .. worker end
local function rooms_key(model) return 'octavo:rooms:' .. model end
local function warmth_key(worker) return 'octavo:warmth:' .. worker end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Asked once: a server that starts again loads this library again, and with it an empty variable.
local known_run_id
local function run_id()
  if not known_run_id then
    known_run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  end
  return known_run_id
end

-- Memory ----------------------------------------------------------------------------------------------------------

-- The part of maxmemory that is used, by Redis's own measure for refusing writes; 0 where it has no maxmemory.
local memory = {looked_ms = 0, used = 0, most = 0}
local function used_memory(now)
  if math.abs(now - memory.looked_ms) >= LOOK_MS then
    local said = redis.call('INFO', 'memory')
    local function figure(name) return tonumber(string.match(said, '\n' .. name .. ':(%d+)')) or 0 end
    memory.looked_ms, memory.most = now, figure('maxmemory')
    memory.used = figure('used_memory') - figure('mem_not_counted_for_evict')
  end
  if memory.most == 0 then return 0 end
  return memory.used / memory.most
end

-- Requests --------------------------------------------------------------------------------------------------------

-- The fields of octavo:request:{id}; those from `attempt` on are numbers.
--
-- `taken_ms`, `first_ms`: when the attempt that started it was taken, when it said its first. `mark`: its seq when it was
-- handed over last. `crashes`: workers in a row that died with it before it had said anything behind the mark.
-- `suits`: the worker that it is kept for.
local FIELDS = {'state', 'model', 'tenant', 'entry', 'owner', 'run_id', 'cancel', 'suits',
  'attempt', 'seq', 'weight', 'estimate', 'bytes', 'queued_ms', 'deadline_ms', 'lease_ms',
  'taken_ms', 'first_ms', 'mark', 'crashes'}
local FIRST_NUMBER = 9

local function read_request(id)
  local values = redis.call('HMGET', request_key(id), unpack(FIELDS))
  if not values[1] then return nil end
  local request = {id = id}
  for i, name in ipairs(FIELDS) do
    if i < FIRST_NUMBER then request[name] = values[i] or '' else request[name] = tonumber(values[i] or 0) end
  end
  return request
end

local function write_request(request, ...)
  local fields = {}
  for _, name in ipairs({...}) do
    fields[#fields + 1] = name
    fields[#fields + 1] = request[name]
  end
  redis.call('HSET', request_key(request.id), unpack(fields))
end

local function has_ended(request)
  return request.state ~= 'queued' and request.state ~= 'running'
end

-- The log's id of an event is <attempt>-<seq + 1>; <attempt>-0 is `claimed`.
local function log(request, seq, event)
  redis.call('XADD', log_key(request.id), request.attempt .. '-' .. (seq + 1), 'event', event)
end

-- Queues and service ----------------------------------------------------------------------------------------------

-- How many wait in a queue, and the id of the entry that was handed out last.
local function waiting(queue)
  if redis.call('EXISTS', queue) == 0 then return 0, '0-0' end
  local flat = redis.call('XINFO', 'GROUPS', queue)[1]
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  return redis.call('XLEN', queue) - group['pending'], group['last-delivered-id']
end

-- 1 for the head of its tenant's queue, 0 for what does not wait.
local function position(request)
  if request.state ~= 'queued' then return 0 end
  local queue = queue_key(request.model, request.tenant)
  local _, last = waiting(queue)
  return #redis.call('XRANGE', queue, '(' .. last, request.entry)
end

-- A tenant that has been idle comes back at the level of those that waited: it can neither save up turns nor owe them.
local function enter_backlog(model, tenant)
  if redis.call('ZSCORE', backlog_key(model), tenant) then return false end
  local own = tonumber(redis.call('HGET', service_key(model), tenant) or 0)
  local floor = tonumber(redis.call('HGET', service_key(model), FLOOR) or 0)
  local service = math.max(own, floor)
  redis.call('HSET', service_key(model), tenant, service)
  redis.call('ZADD', backlog_key(model), service, tenant)
  return true
end

local function raise_floor(model)
  local least = redis.call('ZRANGE', backlog_key(model), 0, 0, 'WITHSCORES')[2]
  local floor = redis.call('HGET', service_key(model), FLOOR) or 0
  if least and tonumber(least) > tonumber(floor) then
    redis.call('HSET', service_key(model), FLOOR, least)
  end
end

local function charge(request, cost)
  if cost == 0 then return end
  local service = redis.call('HINCRBYFLOAT', service_key(request.model), request.tenant, cost / request.weight)
  redis.call('ZADD', backlog_key(request.model), 'XX', service, request.tenant)
end

local function leave_queue(request)
  if request.entry == '' then return end
  local queue = queue_key(request.model, request.tenant)
  redis.call('XACK', queue, GROUP, request.entry)
  redis.call('XDEL', queue, request.entry)
  local bytes = bytes_key(request.model)
  redis.call('HINCRBY', bytes, ALL_BYTES, -request.bytes)
  redis.call('HINCRBY', bytes, ALL_COUNT, -1)
  if redis.call('HINCRBY', bytes, request.tenant, -request.bytes) <= 0 then
    redis.call('HDEL', bytes, request.tenant)
    if redis.call('HLEN', bytes) <= 2 then redis.call('DEL', bytes) end  -- nothing of anybody: the sums begin anew
  end
  -- An empty queue goes, and with it the group's memory of workers long gone.
  if redis.call('XLEN', queue) == 0 then redis.call('DEL', queue) end
  if waiting(queue) == 0 then redis.call('ZREM', backlog_key(request.model), request.tenant) end
end

-- Who lives -------------------------------------------------------------------------------------------------------

-- octavo:server says which server this is, and since when workers have been answered by it: one that reads a large file
-- at its start has been up for long by then. Of the first one that we meet its own start is what counts.
local function meet_server(now)
  local known = redis.call('HGET', SERVER, 'run_id')
  if known ~= run_id() then redis.call('HSET', SERVER, 'run_id', run_id(), 'since_ms', known and now or 0) end
end

local function has_just_started(now)
  local up_s = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  if up_s * 1000 < AFTER_START_MS then return true end
  local known = redis.call('HMGET', SERVER, 'run_id', 'since_ms')
  return known[1] == run_id() and now - known[2] < AFTER_START_MS
end

local function is_stale(worker, now)
  local beat = redis.call('ZSCORE', WORKERS, worker)
  if not beat or beat == '0' then return true end
  if now - beat > STALE_MS then return not has_just_started(now) end
  local stepped = redis.call('HGET', worker_key(worker), 'stepped_ms')
  return stepped and now - stepped > STALLED_MS and redis.call('SCARD', held_key(worker)) > 0
end

-- Suspects --------------------------------------------------------------------------------------------------------

-- A request that several workers in a row have died of runs alone: field `solo` of its worker names it, the worker runs
-- and takes nothing else until it has said something, and whatever the worker dies of then is put down to it alone.

local function solo_of(worker) return redis.call('HGET', worker_key(worker), 'solo') end

-- A seq that is a token's, not that of `started`.
local function has_got_on(request) return request.seq > math.max(request.mark, 0) end

-- What a dead worker ran alone stays written down: what else it held is still to be claimed.
local function clear_of_suspicion(request)
  if request.crashes >= ALONE_FROM and solo_of(request.owner) == request.id and not is_stale(request.owner, now_ms()) then
    redis.call('HDEL', worker_key(request.owner), 'solo')
  end
end

-- Endings ---------------------------------------------------------------------------------------------------------

-- Write the terminal event, which has the last number + 1, and hand the generation to the recorders.
local function finish_as(request, status, event)
  local seq = request.seq + 1
  log(request, seq, event)
  leave_queue(request)
  if request.owner ~= '' then
    redis.call('SREM', held_key(request.owner), request.id)
    clear_of_suspicion(request)
  end
  -- What was refused before it started has cost nothing.
  if status == 'refused' and request.state == 'running' and request.seq < 0 then charge(request, -request.estimate) end
  request.state, request.seq = status, seq
  write_request(request, 'state', 'seq', 'attempt')
  redis.call('HDEL', request_key(request.id), 'entry', 'cancel', 'lease_ms', 'estimate', 'bytes',
    'taken_ms', 'first_ms', 'mark', 'crashes')
  redis.call('XADD', FINISHED, '*', 'id', request.id, 'status', status, 'tenant', request.tenant, 'model', request.model)
end

-- End a generation over its owner's head. `event` is a table: type, code, message, …
local function end_as(request, event)
  request.attempt = request.attempt + 1
  event.seq = request.seq + 1
  finish_as(request, event.type, cjson.encode(event))
end

local CANCELLED_LEASE = 'The caller has gone away.'
local TIMED_OUT = 'The request reached its deadline before it was answered.'
local POISON = 'The engine stopped each time it began to work on this, so it is not tried again.'
local TAIL_LOST = 'Redis restarted while this was being answered, and a part of the answer may be lost.'

-- What makes a request end before any worker touches it, or nil.
local function early_end(request, now)
  if request.cancel == '1' then return {type = 'cancelled'} end
  if request.lease_ms > 0 and request.lease_ms < now then
    return {type = 'cancelled', code = 'lease_expired', message = CANCELLED_LEASE}
  end
  if request.deadline_ms > 0 and request.deadline_ms <= now then
    return {type = 'timeout', code = 'deadline', message = TIMED_OUT, retryable = true}
  end
end

-- Workers ---------------------------------------------------------------------------------------------------------

local function hint(model, ...)
  redis.call('XADD', control_key(model), 'MAXLEN', '~', CONTROL_LENGTH, '*', ...)
end

-- A worker owns the request from here on, under the next attempt.
local function hand_over(request, worker, now)
  if request.owner ~= '' then redis.call('SREM', held_key(request.owner), request.id) end
  request.state, request.owner, request.attempt = 'running', worker, request.attempt + 1
  request.mark = request.seq
  if request.seq < 0 then request.taken_ms = now end
  write_request(request, 'state', 'owner', 'attempt', 'mark', 'taken_ms', 'crashes')
  if request.crashes >= ALONE_FROM then redis.call('HSET', worker_key(worker), 'solo', request.id) end
  redis.call('SADD', held_key(worker), request.id)
  redis.call('ZADD', WORKERS, 'NX', now, worker)  -- so that others find what it holds, whenever it dies
  log(request, -1, cjson.encode({type = 'claimed', seq = -1, worker = worker, attempt = request.attempt}))
end

-- A worker of older code understands the first six, and nothing else.
local function handed(request, payload, now, told)
  local reply = {request.id, request.attempt, payload, request.taken_ms - request.queued_ms, now, request.seq}
  if told then
    reply[7], reply[8] = request.taken_ms, request.first_ms
    reply[9] = request.crashes >= ALONE_FROM and 1 or 0
  end
  return reply
end

-- Which worker suits ----------------------------------------------------------------------------------------------

-- How many more a worker would take, as it said with its last take, less what was kept for it since; below 0 where it
-- has taken more than it can run at once. nil where it does not live or takes nothing new.
local function room_of(model, worker, now)
  local room = redis.call('HGET', rooms_key(model), worker)
  if room and not is_stale(worker, now) and redis.call('HEXISTS', worker_key(worker), 'drain') == 0
    and not solo_of(worker) then
    return tonumber(room)
  end
end

-- The workers that run something of a tenant.
local function serving(model, tenant)
  local found = {}
  for _, consumer in ipairs(redis.call('XPENDING', queue_key(model, tenant), GROUP)[4] or {}) do
    found[consumer[1]] = true
  end
  return found
end

-- The worker with most room, and whether it has any; one that holds the tenant's prompt counts as if it had WARM_ROOM
-- more. A full one only where it runs nothing of the tenant, as it would not take this. Of equals the one that the
-- tenant's name leads to, so that a tenant stays together before anybody is warm. '': nobody.
local function best_suited(model, tenant, now)
  local rooms = redis.call('HGETALL', rooms_key(model))
  local serves = serving(model, tenant)
  local most, equals, has_room = -math.huge, {}, false
  for i = 1, #rooms, 2 do
    local worker, room = rooms[i], tonumber(rooms[i + 1])
    local free = room > 0
    if redis.call('SISMEMBER', warmth_key(worker), tenant) == 1 then room = room + WARM_ROOM end
    -- Whoever has room comes before whoever has none, warm or not.
    if free and not has_room or free == has_room and room >= most and (free or not serves[worker]) then
      if room_of(model, worker, now) then
        if free ~= has_room or room > most then most, equals, has_room = room, {}, free end
        equals[#equals + 1] = worker
      end
    end
  end
  local best, highest = equals[1], ''
  if #equals > 1 then
    for _, worker in ipairs(equals) do
      local rank = redis.sha1hex(tenant .. ' ' .. worker)
      if rank > highest then best, highest = worker, rank end
    end
  end
  return best or '', has_room
end

-- For how many ms a worker leaves a head to the one that suits it better; 0: it is anybody's, as where that one is full
-- by now and this one is not.
local function left_to_another(request, worker, room, now)
  local left = request.queued_ms + WARM_MS - now
  if left <= 0 or request.suits == '' or request.suits == worker then return 0 end
  local its = room_of(request.model, request.suits, now)
  return its and (its > 0 or room <= 0) and left or 0
end

-- What a worker says of itself as it asks for work. `warm`: the tenants whose prompt it holds; '': as before.
local function note_room(model, worker, room, warm)
  redis.call('HSET', rooms_key(model), worker, room)
  if warm ~= '' then
    redis.call('DEL', warmth_key(worker))
    for _, tenant in ipairs(cjson.decode(warm)) do redis.call('SADD', warmth_key(worker), tenant) end
  end
end

-- The functions ---------------------------------------------------------------------------------------------------

-- For how many ms no worker of this model has been seen; 0 while there is one. A worker that signed off leaves no beat
-- behind, so the first who asks in vain leaves a note.
local served = {}
local function unserved_ms(model, now)
  local seen = served[model]
  if not seen or math.abs(now - seen.looked_ms) >= SERVED_MS then
    seen = {looked_ms = now, beat = 0}
    local members = redis.call('ZRANGE', WORKERS, 0, 255, 'REV', 'WITHSCORES')
    for i = 1, #members, 2 do
      local details = redis.call('HGET', worker_key(members[i]), 'details')
      if details and cjson.decode(details).model == model then
        seen.beat = tonumber(members[i + 1])
        break
      end
    end
    served[model] = seen
  end
  local key = unserved_key(model)
  if now - seen.beat <= STALE_MS then
    redis.call('DEL', key)
    return 0
  end
  redis.call('SET', key, now, 'NX')
  redis.call('EXPIRE', key, UNSERVED_TTL_S)
  return now - math.max(seen.beat, tonumber(redis.call('GET', key)))
end

-- Why nothing more is taken from this tenant, or from anybody, for the time being; nil where there is room.
local function no_room(model, queued, size, bounds, now)
  local used = used_memory(now)
  if used >= bounds.memory then return {'overloaded', 'memory', math.floor(100 * used)} end
  local count = tonumber(redis.call('HGET', bytes_key(model), ALL_COUNT) or 0)
  local bytes = tonumber(redis.call('HGET', bytes_key(model), ALL_BYTES) or 0)
  local room = queued < FEW and RESERVE or 1
  if count >= bounds.count * room or bytes + size > bounds.bytes * room then return {'overloaded', 'queue', count} end
  if bounds.unserved_ms > 0 then
    local unserved = unserved_ms(model, now)
    if unserved > bounds.unserved_ms then return {'overloaded', 'no_worker', math.floor(unserved / 1000)} end
  end
end

local function enqueue(_, args)
  local id, model, tenant, payload = args[1], args[2], args[3], args[4]
  local estimate, weight, deadline_ms, leased = args[5], args[6], args[7], args[8]
  local most, most_bytes = tonumber(args[9]), tonumber(args[10])
  -- Of all tenants together; a caller of an older version says nothing of these.
  local bounds = {count = tonumber(args[11]) or math.huge, bytes = tonumber(args[12]) or math.huge,
    memory = tonumber(args[13]) or math.huge, unserved_ms = tonumber(args[14]) or 0}
  local known = read_request(id)
  if known then return {'known', known.state, position(known)} end

  local queue = queue_key(model, tenant)
  local queued = waiting(queue)
  local bytes = tonumber(redis.call('HGET', bytes_key(model), tenant) or 0)
  if queued >= most or bytes + #payload > most_bytes then return {'full', 'queued', queued} end
  local now = now_ms()
  local refusal = no_room(model, queued, #payload, bounds, now)
  if refusal then return refusal end

  if redis.call('EXISTS', queue) == 0 then redis.call('XGROUP', 'CREATE', queue, GROUP, '0', 'MKSTREAM') end
  local entered = enter_backlog(model, tenant)
  local suits, has_room = best_suited(model, tenant, now)
  -- With no room anywhere only a tenant's first is kept for somebody: the others wait for whoever gets some.
  if not has_room and not entered then suits = '' end
  redis.call('HSET', request_key(id), 'state', 'queued', 'model', model, 'tenant', tenant, 'suits', suits,
    'entry', redis.call('XADD', queue, '*', 'id', id, 'request', payload),
    'attempt', 0, 'seq', -1, 'weight', weight, 'estimate', estimate, 'bytes', #payload,
    'queued_ms', now, 'deadline_ms', deadline_ms, 'lease_ms', leased == '1' and now + LEASE_MS or 0)
  redis.call('HINCRBY', bytes_key(model), tenant, #payload)
  redis.call('HINCRBY', bytes_key(model), ALL_BYTES, #payload)
  redis.call('HINCRBY', bytes_key(model), ALL_COUNT, 1)
  memory.used = memory.used + #payload
  if suits ~= '' then
    redis.call('HINCRBY', rooms_key(model), suits, -1)
    hint(model, 'kind', 'enqueued', 'worker', suits)
  elseif entered then
    hint(model, 'kind', 'enqueued')
  end  -- else whoever gets room takes until nothing is left
  return {'ok', 'queued', queued + 1}
end

-- The head of a tenant's queue that is worth running; those before it that are not are ended here.
local function live_head(model, tenant, now)
  local queue = queue_key(model, tenant)
  while true do
    local queued, last = waiting(queue)
    if queued == 0 then
      redis.call('ZREM', backlog_key(model), tenant)
      return nil
    end
    local entry = redis.call('XRANGE', queue, '(' .. last, '+', 'COUNT', 1)[1]
    local request = read_request(entry[2][2])
    if not request or request.entry ~= entry[1] then
      -- Nobody waits for it.
      leave_queue({model = model, tenant = tenant, entry = entry[1], bytes = #entry[2][4]})
    else
      local event = early_end(request, now)
      if not event then return request end
      end_as(request, event)
    end
  end
end

-- The reply is what was handed over; or for how many ms the nearest of the heads that are kept for other workers is
-- theirs, so that nothing waits longer than that for one that does not come (a worker of older code, which says nothing
-- of `waits`, would not understand it); or nothing.
local function take(_, args)
  local worker, model, room = args[1], args[2], tonumber(args[3])
  note_room(model, worker, room, args[5])
  -- Asked here, so that it gets nothing more once the operator has been told that it drains.
  if redis.call('HEXISTS', worker_key(worker), 'drain') == 1 or solo_of(worker) then return false end
  local tenants, running = cjson.decode(args[4]), {}
  for _, tenant in ipairs(tenants) do running[tenant] = true end
  local now = now_ms()
  raise_floor(model)

  -- One that runs nothing of k tenants finds a new one among k + 1; the others are looked at for a warm prefix.
  local backlog = redis.call('ZRANGE', backlog_key(model), 0, #tenants + 32)
  if #backlog == 0 then return false end
  local held = redis.call('SMISMEMBER', warmth_key(worker), unpack(backlog))
  local chosen, wait_ms
  for i, tenant in ipairs(backlog) do
    if room > 0 or not running[tenant] then
      local warm = held[i] == 1
      local request = (warm or not chosen) and live_head(model, tenant, now)
      local left = request and left_to_another(request, worker, room, now) or 0
      if left > 0 then
        wait_ms = math.min(wait_ms or left, left)
      elseif request then
        chosen = request
        if warm or now - request.queued_ms >= WARM_MS then break end
      end
    end
  end
  if not chosen then return args[6] == 'waits' and wait_ms or false end

  local queue = queue_key(model, chosen.tenant)
  local read = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', queue, '>')
  hand_over(chosen, worker, now)
  redis.call('HSET', rooms_key(model), worker, room - 1)
  charge(chosen, chosen.estimate)
  if waiting(queue) == 0 then redis.call('ZREM', backlog_key(model), chosen.tenant) end
  return handed(chosen, read[1][2][1][2][4], now, args[6])
end

-- Whether the server has lost what came after the last event that it knows of. Its file is a beginning of all that was
-- done; what a worker did before it went in order lies before that.
local function may_have_a_hole(request, retired)
  return request.seq >= 0 and request.run_id ~= run_id() and not retired
end

local function claim(_, args)
  local worker, id = args[1], args[2]
  local now = now_ms()
  local request = read_request(id)
  if not request or request.state ~= 'running' then
    redis.call('SREM', held_key(worker), id)
    return {'gone'}
  end
  local queue, former = queue_key(request.model, request.tenant), request.owner
  if former ~= worker and not is_stale(former, now) then return {'owned'} end
  local early = early_end(request, now)
  if early then
    end_as(request, early)
    return {'ended'}
  end
  local retired = redis.call('ZSCORE', WORKERS, former) == '0'
  if may_have_a_hole(request, retired) then
    end_as(request, {type = 'interrupted', code = 'redis_restarted', message = TAIL_LOST, retryable = true})
    return {'interrupted'}
  end
  local entry = redis.call('XRANGE', queue, request.entry, request.entry)[1]
  if not entry then
    end_as(request, {type = 'interrupted', code = 'request_lost', message = TAIL_LOST, retryable = true})
    return {'interrupted'}
  end
  if has_got_on(request) then request.crashes = 0 end
  -- A worker that went in order has died of nothing, and one that ran a suspect has died of that.
  if former ~= worker and not retired and (solo_of(former) or id) == id then request.crashes = request.crashes + 1 end
  if request.crashes >= DEAD_FROM then
    redis.call('XADD', DEAD, 'MAXLEN', '~', MOST_DEAD, '*', 'id', id, 'tenant', request.tenant, 'model', request.model,
      'worker', former, 'attempts', request.attempt)
    end_as(request, {type = 'failed', code = 'poison', message = POISON, retryable = false})
    return {'dead'}
  end
  if request.crashes >= ALONE_FROM and (solo_of(worker) or id) ~= id then return {'busy'} end
  redis.call('XCLAIM', queue, GROUP, worker, 0, request.entry, 'JUSTID')
  if former ~= worker and #redis.call('XPENDING', queue, GROUP, '-', '+', 1, former) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', queue, GROUP, former)
  end
  hand_over(request, worker, now)
  return {'ok', unpack(handed(request, entry[2][4], now, args[3]))}
end

local function is_current(request, worker, attempt)
  return request and request.state == 'running' and request.owner == worker and request.attempt == attempt
end

local function tell_one(worker, id, attempt, seq, cost, event)
  local request = read_request(id)
  if not is_current(request, worker, attempt) then return 'stale' end
  if seq > request.seq + 1 then return 'behind ' .. request.seq end
  if seq == request.seq + 1 then
    log(request, seq, event)
    request.seq, request.run_id = seq, run_id()
    write_request(request, 'seq', 'run_id')
    if seq == 1 then redis.call('HSET', request_key(id), 'first_ms', now_ms()) end
    if request.crashes >= ALONE_FROM and has_got_on(request) then
      clear_of_suspicion(request)
      redis.call('HSET', request_key(id), 'crashes', 0)
    end
    -- `started` (seq 0) brings the true cost of the prompt in place of the estimate.
    if seq == 0 then charge(request, cost - request.estimate) else charge(request, cost) end
  end
  if request.cancel == '1' then return 'cancelled' end
  return 'ok'
end

local function tell(_, args)
  local replies = {}
  for i = 2, #args, 5 do
    local attempt, seq, cost = tonumber(args[i + 1]), tonumber(args[i + 2]), tonumber(args[i + 3])
    replies[#replies + 1] = tell_one(args[1], args[i], attempt, seq, cost, args[i + 4])
  end
  return replies
end

local function finish(_, args)
  local worker, id, attempt, seq = args[1], args[2], tonumber(args[3]), tonumber(args[4])
  local status, event = args[5], args[6]
  local request = read_request(id)
  if request and has_ended(request) and request.owner == worker and request.attempt == attempt then return 'ok' end
  if not is_current(request, worker, attempt) then return 'stale' end
  if seq > request.seq + 1 then return 'behind ' .. request.seq end
  if seq <= request.seq then
    return redis.error_reply('ERR terminal event ' .. seq .. ' of ' .. id .. ' is behind its log, at ' .. request.seq)
  end
  finish_as(request, status, event)
  return 'ok'
end

local function cancel(_, args)
  local id = args[1]
  local request = read_request(id)
  if not request then
    request = {id = id, state = 'queued', model = '', tenant = '', entry = '', owner = '', attempt = 0, seq = -1,
      crashes = 0}
  end
  if has_ended(request) then return request.state end
  if request.state == 'running' and not is_stale(request.owner, now_ms()) then
    redis.call('HSET', request_key(id), 'cancel', '1')
    hint(request.model, 'kind', 'cancel', 'id', id)
    return 'cancelling'
  end
  end_as(request, {type = 'cancelled'})
  return request.state
end

-- End from outside, whatever the state: a deadline without workers, a log with a hole.
local function end_(_, args)
  local request = read_request(args[1])
  if not request then return 'unknown' end
  if has_ended(request) then return request.state end
  local running = request.state == 'running'
  end_as(request, cjson.decode(args[2]))
  if running then hint(request.model, 'kind', 'ended', 'id', request.id) end
  return request.state
end

local function renew(_, args)
  local request = read_request(args[1])
  if not request then return 'unknown' end
  if not has_ended(request) then redis.call('HSET', request_key(request.id), 'lease_ms', now_ms() + LEASE_MS) end
  return request.state
end

-- Says that the worker lives; the reply says what it holds and which of that it should end: {now, id, flag, id, flag, …}.
local function heartbeat(_, args)
  local worker, steps, details = args[1], args[2], args[3]
  local now = now_ms()
  meet_server(now)
  redis.call('ZADD', WORKERS, now, worker)
  local held = redis.call('SMEMBERS', held_key(worker))
  if #held == 0 or redis.call('HGET', worker_key(worker), 'steps') ~= steps then
    redis.call('HSET', worker_key(worker), 'stepped_ms', now)
  end
  redis.call('HSET', worker_key(worker), 'steps', steps, 'details', details)
  -- One that was taken for dead while it ran a suspect, and wakes up, is rid of it.
  local solo = solo_of(worker)
  if solo and redis.call('SISMEMBER', held_key(worker), solo) == 0 then
    redis.call('HDEL', worker_key(worker), 'solo')
  end
  local reply = {now}
  for _, id in ipairs(held) do
    local request = read_request(id)
    if not request then
      redis.call('SREM', held_key(worker), id)
    else
      local event = early_end(request, now)
      reply[#reply + 1] = id
      reply[#reply + 1] = event and event.type or 'run'
    end
  end
  return reply
end

local function forget(worker)
  local details = redis.call('HGET', worker_key(worker), 'details')
  if details then redis.call('HDEL', rooms_key(cjson.decode(details).model), worker) end
  redis.call('ZREM', WORKERS, worker)
  redis.call('DEL', worker_key(worker), warmth_key(worker))
end

-- An operator wants a worker to take nothing new, or to take again. It reads the wish with its heartbeat; a hint makes
-- that quick. The wish goes with the worker: a new process has a new id and takes.
local function drain(_, args)
  local worker, wanted = args[1], args[2] == '1'
  local beat = redis.call('ZSCORE', WORKERS, worker)
  if not beat or now_ms() - beat > STALE_MS then return 'gone' end
  if wanted then
    redis.call('HSET', worker_key(worker), 'drain', '1')
  else
    redis.call('HDEL', worker_key(worker), 'drain')
  end
  local details = redis.call('HGET', worker_key(worker), 'details')
  if details then hint(cjson.decode(details).model, 'kind', 'drain', 'id', worker) end
  return wanted and 'draining' or 'taking'
end

-- A worker that went without a word (one that retires has the score 0), for those who look for what went wrong.
local function note_vanished(worker, beat)
  local details = redis.call('HGET', worker_key(worker), 'details')
  if beat <= 0 or not details then return end
  local known = cjson.decode(details)
  redis.call('XADD', VANISHED, 'MAXLEN', MOST_VANISHED, '*', 'worker', worker, 'model', known.model,
    'host', known.host or '', 'beat_ms', string.format('%.0f', beat))
end

-- What dead workers of this model hold. Those that hold nothing are forgotten after a while.
local function orphans(_, args)
  local worker, model = args[1], args[2]
  local now, found = now_ms(), {}
  local members = redis.call('ZRANGE', WORKERS, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local other = members[i]
    if other ~= worker and is_stale(other, now) then
      for _, id in ipairs(redis.call('SMEMBERS', held_key(other))) do
        local request = read_request(id)
        if not request or request.owner ~= other or request.state ~= 'running' then
          redis.call('SREM', held_key(other), id)
        elseif request.model == model and #found < ORPHANS then
          found[#found + 1] = id
        end
      end
      if now - members[i + 1] > FORGET_MS and redis.call('SCARD', held_key(other)) == 0 then
        note_vanished(other, tonumber(members[i + 1]))
        forget(other)
      end
    end
  end
  return found
end

-- A worker goes in order. What it still holds is found by the others, as it no longer has a heartbeat.
local function retire(_, args)
  local worker = args[1]
  if redis.call('SCARD', held_key(worker)) == 0 then
    forget(worker)
  else
    redis.call('ZADD', WORKERS, 0, worker)
  end
  return 'ok'
end

-- The recorder has it: the log and the state live on for a while, for readers and for late retries of the caller. For
-- less than that where memory is short: the database has the text, and room for new answers is worth more.
local function recorded(_, args)
  local entry, id, ttl = args[1], args[2], tonumber(args[3])
  local short = (used_memory(now_ms()) - SPACIOUS) / (TIGHT - SPACIOUS)
  if short > 0 and ttl > SHORTEST_S then
    ttl = math.floor(ttl + (SHORTEST_S - ttl) * math.min(1, short))
  end
  redis.call('EXPIRE', log_key(id), ttl)
  redis.call('EXPIRE', request_key(id), ttl)
  redis.call('XACK', FINISHED, 'recorders', entry)
  redis.call('XDEL', FINISHED, entry)
  return 'ok'
end

local function place(_, args)
  local request = read_request(args[1])
  return request and position(request) or 0
end

-- Somebody looks at a chat's memory for a while. Where nobody did before, a hint says so to the workers, and what they
-- said the last time counts no more.
local function watch(_, args)
  local model, member, ttl = args[1], args[2], tonumber(args[3])
  local key, now = 'octavo:watches:' .. model, now_ms()
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local new = redis.call('ZADD', key, now + ttl, member)
  redis.call('ZREMRANGEBYRANK', key, 0, -MOST_WATCHES - 1)
  redis.call('PEXPIRE', key, ttl)
  if new == 1 then
    redis.call('DEL', (string.gsub('octavo:memory ' .. member, ' ', ':')))
    hint(model, 'kind', 'watch')
  end
  return new
end

local function watched(_, args)
  return redis.call('ZRANGEBYSCORE', 'octavo:watches:' .. args[1], '(' .. now_ms(), '+inf')
end

local function register(name, callback, flags)
  redis.register_function({function_name = PREFIX .. name, callback = callback, flags = flags or {}})
end

-- What ends work frees memory, so it must go on when memory is short.
-- Enqueue looks at the memory itself, and refuses in words where Redis would say OOM.
register('enqueue', enqueue, {'allow-oom'})
register('take', take)
register('claim', claim, {'allow-oom'})
register('tell', tell)
register('finish', finish, {'allow-oom'})
register('cancel', cancel, {'allow-oom'})
register('end', end_, {'allow-oom'})
register('renew', renew, {'allow-oom'})
register('heartbeat', heartbeat, {'allow-oom'})
register('orphans', orphans, {'allow-oom'})
register('retire', retire, {'allow-oom'})
register('drain', drain, {'allow-oom'})
register('recorded', recorded, {'allow-oom'})
register('place', place, {'no-writes'})
register('watch', watch)
register('watched', watched, {'no-writes'})
