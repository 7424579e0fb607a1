-- What the prefix cache gives up goes on in host memory and on disk: a prompt whose pages come back from there is
-- answered as one that is computed anew, also by a program that was started later. Damage, other weights and another
-- process on the same file are misses or clear errors.
local model = require "pl.model"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function fails(what, f, ...)
  local ok, e = pcall(f, ...)
  verdict(not ok, what .. ": no error")
  return tostring(e)
end
local tiny, PAGE = "tests/data/tiny-llama", 64 * 4 * 2 * 32 * 2 * 2
local dir = os.tmpname()
os.remove(dir)
assert(os.execute(("mkdir '%s'"):format(dir)) == 0)

local function prompt(salt, len)
  local t = {}
  for i = 1, len do t[i] = (i * salt * 13 + i % salt) % 900 + 20 end
  return t
end
local function ask(m, salt)
  return table.concat(m:generate { ids = prompt(salt, 200 + salt), max_tokens = 12, ignore_eos = true }.ids, " ")
end
local function load(o)
  local all = { batch = 2, context = 512, cache_bytes = 8 * PAGE }
  for k, v in pairs(o) do all[k] = v end
  return model.load(tiny, all)
end

local plain = load { prefix = false }
local want = {}
for salt = 1, 6 do want[salt] = ask(plain, salt) end
plain:close()

-- eight pages; each of six prompts leaves three or four full ones
local function rounds(m, n)
  local right = 0
  for _ = 1, n do
    for salt = 1, 6 do right = right + (ask(m, salt) == want[salt] and 1 or 0) end
  end
  return right
end
local function through(what, o, hits)
  local m = load(o)
  verdict(rounds(m, 3) == 18, what .. ": the same answers")
  local x = m:metrics()
  verdict(x[hits] > 0 and x.cached_tokens >= 64 * x[hits],
    ("%s: %d pages came back, %d tokens cached"):format(what, x[hits], x.cached_tokens))
  local damage = x.tier_host_damaged + x.tier_disk_damaged + x.tier_disk_errors
  verdict(damage == 0 and not x.tier_disk_off, what .. ": damage")
  verdict(x.pages.free + x.pages.owned == 8, what .. ": all pages are there")
  m:close()
  return x
end
local only = load {}
verdict(rounds(only, 2) == 12, "without tiers: the same answers")
local none = only:metrics()
only:close()
local x = through("host", { host_cache_bytes = 40 * PAGE }, "tier_host_hits")
verdict(x.cached_tokens > none.cached_tokens and x.tier_host_capacity == 40 and x.tier_disk_capacity == 0,
  ("host: %d tokens cached, %d without"):format(x.cached_tokens, none.cached_tokens))
verdict(x.copied_bytes > 0 and x.copy_s > 0 and x.n_copies == 0, "host: copies are counted")
through("disk", { disk_cache = dir, disk_cache_bytes = 40 * (PAGE + 4096) }, "tier_disk_hits")
os.remove(dir .. "/perilune.pages") -- what is there already is not copied to host memory
local both = through("both", { host_cache_bytes = 4 * PAGE, disk_cache = dir, disk_cache_bytes = 40 * (PAGE + 4096) },
  "tier_disk_hits")
verdict(both.tier_host_stored > 0 and both.tier_host_dropped > 0, "both: host memory gives up to the disk")

-- a program that is started later, with the same weights, finds what the last one left; others do not
local disk = { disk_cache = dir, disk_cache_bytes = 40 * (PAGE + 4096) }
local function later(what, o, found)
  local m = load(o)
  local right = rounds(m, 1)
  local r = m:metrics()
  if not o.act then verdict(right == 6, what .. ": the same answers") end
  verdict((r.tier_disk_hits >= 12) == found, ("%s: %d hits"):format(what, r.tier_disk_hits))
  m:close()
end
later("reopened", disk, true)
later("other activations", { disk_cache = dir, disk_cache_bytes = disk.disk_cache_bytes, act = "f32", kv = "bf16" },
  false)
-- those took all places
later("reopened after another", disk, false)
later("reopened again", disk, true)
local f = assert(io.open(dir .. "/perilune.pages", "r+b"))
local size = f:seek "end"
for at = 5000, size, 997 do
  f:seek("set", at)
  f:write "x"
end
f:close()
local m = load(disk)
verdict(rounds(m, 2) == 12, "a damaged file: the same answers")
verdict(m:metrics().tier_disk_damaged > 0, "a damaged file is noticed")
-- one at a time
local locked = fails("locked", load, disk)
verdict(locked:find "in use by another" ~= nil, "locked: " .. locked)
verdict(ask(m, 1) == want[1], "the first one goes on")
m:close()

-- what cannot be meant
local cases = { { "no directory", { disk_cache_bytes = 1e9 }, "want both" },
  { "no size", { disk_cache = dir }, "want both" },
  { "no such directory", { disk_cache = dir .. "/none", disk_cache_bytes = 1e6 }, "No such file" },
  { "less than a page", { host_cache_bytes = 100 }, "one page of 64 tokens" },
  { "less than a page on disk", { disk_cache = dir, disk_cache_bytes = 100 }, "one page of 64 tokens" },
  { "no prefix cache", { host_cache_bytes = 1e6, prefix = false }, "it is off" },
  { "zero", { host_cache_bytes = 0 }, "at least 1" } }
for _, c in ipairs(cases) do
  local text = fails(c[1], load, c[2])
  verdict(text:find(c[3], 1, true) ~= nil, c[1] .. ": " .. text)
end

-- many at a time, under each policy, and one that gives up at the first request that cannot be planned
local looked = 0
local strict = function(s)
  for r in s:running() do if not s:decode(r) then break end end
  for r in s:waiting() do
    local fits = s:prefill(r, math.min(r.left, s.tokens.left))
    looked = math.max(looked, r.loading)
    if not fits then break end
  end
end
m = load { batch = 4, cache_bytes = 12 * PAGE, host_cache_bytes = 40 * PAGE }
for _, p in ipairs { "decode_first", "fair", "deadline", "longest_prefix_first", strict } do
  m:set_policy(p)
  local rs, right = {}, 0
  for i = 1, 12 do
    rs[i] = m:submit { ids = prompt(i % 6 + 1, 201 + i % 6), max_tokens = 12, ignore_eos = true }
  end
  m:step()
  m:step()
  m.engine:cancel(rs[5])
  while m:step() > 0 do end
  for i = 1, 12 do
    if i ~= 5 and table.concat(rs[i].ids, " ") == want[i % 6 + 1] then right = right + 1 end
  end
  verdict(right == 11, ("%s: %d of 11 answers"):format(type(p) == "string" and p or "strict", right))
end
verdict(m:metrics().tier_host_hits > 0 and m:metrics().policy_failures == 0,
  ("%d policy failures"):format(m:metrics().policy_failures))
verdict(looked > 0, "a policy sees what is on its way")
local got = m:logits(prompt(9, 500)) -- takes pages that copies may still read
verdict(got:count() > 0, "logits beside the copies")
m:close()

os.remove(dir .. "/perilune.pages")
os.execute(("rmdir '%s'"):format(dir))
verdicts.done()
