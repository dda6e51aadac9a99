"""The Lua scripts. Each touches one key (so they work on a Redis Cluster too) and takes its time from Redis.

Epochs are at least the clock of Redis in milliseconds, not a count from 1: after a key has expired or a Redis has lost
its memory, the next claim is still above every epoch ever given out. Milliseconds fit Lua's doubles exactly; `%.0f`
keeps them from being printed as 1.7e+12.
"""

# KEYS: session. ARGV: verifier_id, incarnation, ttl_ms. Returns the placement's fields.
CLAIM = """
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local stored = redis.call('HMGET', KEYS[1], 'epoch', 'committed_len')
local epoch = string.format('%.0f', math.max(now_ms, (tonumber(stored[1]) or 0) + 1))
local committed_len = string.format('%.0f', tonumber(stored[2]) or 0)
local last_used_s = string.format('%.3f', now_ms / 1000)
redis.call('HSET', KEYS[1], 'verifier_id', ARGV[1], 'incarnation', ARGV[2], 'epoch', epoch,
           'committed_len', committed_len, 'last_used_s', last_used_s)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {ARGV[1], ARGV[2], epoch, committed_len, last_used_s}
"""

# KEYS: session. ARGV: epoch, committed_len, ttl_ms. Returns 0 if a newer epoch is stored, else 1.
RECORD_PROGRESS = """
local stored = redis.call('HMGET', KEYS[1], 'epoch', 'committed_len')
local stored_epoch, epoch = tonumber(stored[1]), tonumber(ARGV[1])
if not stored_epoch then return 1 end
if epoch < stored_epoch then return 0 end
local now = redis.call('TIME')
local committed_len = ARGV[2]
if epoch == stored_epoch and (tonumber(stored[2]) or 0) > tonumber(committed_len) then committed_len = stored[2] end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'committed_len', committed_len,
           'last_used_s', string.format('%.3f', now[1] + now[2] / 1000000))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

# KEYS: session. ARGV: epoch or ''. Returns 0 if a newer epoch is stored, else 1. The epoch itself stays until the TTL:
# a claim in the same millisecond must still be above it.
RELEASE = """
local stored = tonumber(redis.call('HGET', KEYS[1], 'epoch'))
if ARGV[1] ~= '' and stored and stored > tonumber(ARGV[1]) then return 0 end
redis.call('HDEL', KEYS[1], 'verifier_id', 'incarnation', 'committed_len', 'last_used_s')
return 1
"""

# The incarnation in a pod's record; nil where there is no record or not one of ours.
_INCARNATION_OF = """
local function incarnation_of(record)
  local is_json, pod = pcall(cjson.decode, record)
  return is_json and type(pod) == 'table' and pod['incarnation'] or nil
end
"""

# KEYS: pod. ARGV: incarnation, record, ttl_ms. Returns 0 if another incarnation holds the id, else 1.
HEARTBEAT = (
    _INCARNATION_OF
    + """
local stored = incarnation_of(redis.call('GET', KEYS[1]))
if stored and stored ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
)

# KEYS: pod. ARGV: incarnation. Deletes the record of this incarnation only.
WITHDRAW = (
    _INCARNATION_OF
    + """
if incarnation_of(redis.call('GET', KEYS[1])) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
"""
)
