-- Remove an experiment's ctl, after which every script answers GONE. Runs when the memory is full.
-- KEYS  1 ctl (hash)  2 status (hash)
-- ARGV  1 "force" to remove one that is not over | ""
-- Reply {"OK" | "GONE" (no ctl already) | "ACTIVE", state}
local state = redis.pcall('HGET', KEYS[2], 'state') or ''
if type(state) ~= 'string' then -- somebody put something else there
  state = ''
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE', state}
end
if ARGV[1] ~= 'force' and (state == 'running' or state == 'paused' or state == 'stopping') then
  return {'ACTIVE', state}
end
redis.call('UNLINK', KEYS[1])
return {'OK', state}
