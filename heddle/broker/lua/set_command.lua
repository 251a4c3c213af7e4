-- Tell an experiment to run, pause or stop; stop is absorbing. Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 status (hash)
-- ARGV  1 command (run | pause | stop)  2 rev the caller saw, "" for any  3 news channel
--       4 seat epoch of a trainer that says it  5 leader epoch of a coordinator that does; "" for anybody else
-- Reply {"OK" | "SAME" | "GONE" | "CONFLICT" (rev moved) | "STOPPED" | "ENDED" | "FENCED", rev, command, state}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE', '0', '', ''}
end
local ctl = redis.call('HMGET', KEYS[1], 'command', 'rev', 'seat_epoch', 'leader_epoch')
-- A rev that is none, by somebody's hand, is begun anew: whoever says stop is heard.
local command, rev = ctl[1] or 'run', whole(ctl[2])
local state = redis.call('HGET', KEYS[2], 'state') or ''
local shown = string.format('%.0f', rev)
if (ARGV[4] ~= '' and tonumber(ARGV[4]) ~= tonumber(ctl[3] or '0'))
  or (ARGV[5] ~= '' and tonumber(ARGV[5]) < whole(ctl[4])) then
  return {'FENCED', shown, command, state}
end
if command == ARGV[1] then
  return {'SAME', shown, command, state}
end
if state == 'completed' or state == 'stopped' or state == 'failed' then
  return {'ENDED', shown, command, state}
end
if command == 'stop' then
  return {'STOPPED', shown, command, state}
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= rev then
  return {'CONFLICT', shown, command, state}
end
shown = string.format('%.0f', rev + 1)
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'command', ARGV[1], 'rev', shown)
redis.call('PUBLISH', ARGV[3], 'command ' .. ARGV[1])
return {'OK', shown, ARGV[1], state}
