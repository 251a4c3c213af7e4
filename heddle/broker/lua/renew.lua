-- Renew a worker's leases in one partition; revive a lease key that ran out while the shard hash still names the owner.
-- Runs when the memory is full: PEXPIRE comes first.
-- KEYS  1 ctl (hash)  2 due (sorted set)  3.. shard (hash), lease (hash with TTL) of each
-- ARGV  1 ttl ms  2.. shard index, worker, epoch, nonce, stepping (0 | 1) of each; then the number of the worker's last mark
--       when that was so: what was said before a newer mark and comes after it leaves `stepping` as it is
-- Reply {"GONE"} | {"OK", command, policy, eval_policy, status ("OK" | "FENCED"), seq, status, seq, ...}
local ctl = redis.call('HMGET', KEYS[1], 'command', 'policy', 'eval_policy')
if not ctl[1] then
  return {'GONE'}
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local deadline = string.format('%.0f', now + tonumber(ARGV[1]))
local reply, due, mark = {'OK', ctl[1], ctl[2] or '0', ctl[3] or '0'}, {}, ARGV[2 + (#KEYS - 2) / 2 * 5] or '0'
for i = 3, #KEYS, 2 do
  local at = 2 + (i - 3) / 2 * 5
  local s = redis.call('HMGET', KEYS[i], 'state', 'worker', 'epoch', 'nonce', 'seq', 'stepping', 'mark')
  if s[1] == 'leased' and s[2] == ARGV[at + 1] and s[3] == ARGV[at + 2] and s[4] == ARGV[at + 3] then
    if redis.call('PEXPIRE', KEYS[i + 1], ARGV[1]) == 0 then
      redis.call('HSET', KEYS[i + 1], 'worker', s[2], 'epoch', s[3])
      redis.call('PEXPIRE', KEYS[i + 1], ARGV[1])
    end
    due[#due + 1], due[#due + 2] = deadline, ARGV[at]
    if #due == 1000 then
      redis.call('ZADD', KEYS[2], unpack(due))
      due = {}
    end
    local newer = tonumber(mark) - (tonumber(s[7] or '0') or 0)
    if newer > 0 then -- kept also where it says the same: something older may be on its way
      redis.call('HSET', KEYS[i], 'stepping', ARGV[at + 4], 'mark', mark)
    elseif newer == 0 and s[6] ~= ARGV[at + 4] then
      redis.call('HSET', KEYS[i], 'stepping', ARGV[at + 4])
    end
    reply[#reply + 1] = 'OK'
  else
    reply[#reply + 1] = 'FENCED'
  end
  reply[#reply + 1] = s[5] or '0'
end
if #due > 0 then
  redis.call('ZADD', KEYS[2], unpack(due))
end
return reply
