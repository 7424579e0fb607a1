-- Schedules: one of a recipe's own is run and can reorder, a wrong or endless one gives way to decode_first,
-- records cannot be written, a prompt longer than a step goes on where it stopped, requests wait for pages
-- and are cancelled.
local model, recipe = require "pl.model", require "pl.recipe"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local base = require("pl.recipes.text").llama
local function with(schedule)
  local name = os.tmpname() -- an empty file, which is not the one that is written
  os.remove(name)
  local path = name .. ".lua"
  local f = assert(io.open(path, "wb"))
  f:write((base:gsub("schedule = pl%.policy%.decode_first", function() return "schedule = " .. schedule end)))
  f:close()
  return path
end

-- policies by name, in a recipe: all of them, and a name that is none is an error
for _, name in ipairs(require("pl.policy").names) do
  local path = with("pl.policy." .. name)
  verdict(recipe.load(path).schedule == require("pl.policy")[name], name)
  os.remove(path)
end
do
  local path = with "pl.policy.fare"
  local ok, e = pcall(recipe.load, path)
  verdict(not ok and tostring(e):find("did you mean 'fair'?", 1, true), "a name that is none: " .. tostring(e))
  os.remove(path)
end

-- tokens of eight requests under a schedule, and how often it failed
local function run(schedule, o, priority)
  local path = with(schedule)
  local opts = { weights = "tests/data/tiny-llama", batch = 4, tokens = 16, context = 128, act = "f32" }
  for k, v in pairs(o or {}) do opts[k] = v end
  local m = model.load(path, opts)
  os.remove(path)
  local rs, order = {}, {}
  for i = 1, 4 do
    local ids = {}
    for k = 1, i * 9 do ids[k] = (i * 31 + k * 7) % 1000 + 3 end
    rs[i] = m:submit { ids = ids, max_tokens = 6, ignore_eos = true, priority = priority and i,
      on_token = function() order[#order + 1] = i end }
  end
  local steps = 0
  while m:step() > 0 do
    steps = steps + 1
    assert(steps < 500, "no end")
  end
  local out = {}
  for i = 1, 4 do out[i] = table.concat(rs[i].ids, " ") end
  local failures, metrics = m.engine.policy_counter.failures, m:metrics()
  m:close()
  return table.concat(out, "\n"), failures, order, steps, metrics
end

local want, failures, order = run "pl.policy.decode_first"
verdict(select(2, want:gsub("%d+", "")) == 24 and failures == 0, "decode_first: " .. want)
verdict(order[1] == 1, "first come, first served")
local same_tokens, _, by_priority = run("pl.policy.decode_first", nil, true)
verdict(same_tokens == want and by_priority[1] == 4, "the highest priority first")

local function same(schedule, what, fails)
  local got, n, o, steps, metrics = run(schedule)
  verdict(got == want, what .. ": other tokens")
  verdict((n > 0) == (fails or false), ("%s: failed %d times"):format(what, n))
  return o, steps, metrics
end
local last_first = [[function(s)
    for r in s:running() do s:decode(r) end
    local list = {}
    for r in s:waiting() do list[#list + 1] = r end
    table.sort(list, function(a, b) return a.id > b.id end)
    for _, r in ipairs(list) do
      if s.tokens.left > 0 then s:prefill(r, math.min(r.left, s.tokens.left)) end
    end
  end]]
local o = same(last_first, "last come, first served")
verdict(o[1] == 4, "last come, first served: request " .. o[1])
same("function(s) for r in s:running() do s:decode(r) end for r in s:waiting() do s:prefill(r, 1) end end",
  "one token at a time")

io.stderr:write "seven messages about failing schedules are expected here\n"
same("function(s) error 'mine' end", "an error", true)
same("function(s) while true do pcall(function() while true do end end) end end", "an endless loop", true)
same("function(s) for r in s:waiting() do r.left = 1000 end end", "writing to a record", true)
same("function(s) for r in s:waiting() do s:prefill(r, 1000) end end", "more tokens than there are", true)
same("function(s) end", "a schedule that plans nothing", true)

same([[(function()
    local kept = {}
    return function(s)
      for i = 1, 8 do kept[#kept + 1] = ("x"):rep(2 ^ 20 - 1 - #kept) end
      return pl.policy.decode_first(s)
    end
  end)()]], "a schedule that keeps 8 MB more in each step", true)
same([[function(s)
    local kept = {}
    for i = 1, 8 do kept[i] = ("x"):rep(2 ^ 20 - i) end
    return pl.policy.decode_first(s)
  end]], "a schedule that makes 8 MB in each step and keeps none")

-- what always begins anew never ends, if nothing keeps it
local _, steps, x = same([[function(s)
    for r in s:running() do if not s:preempt(r) then s:decode(r) end end
    for r in s:waiting() do if r.n_done > 0 then s:preempt(r) end end
    for r in s:waiting() do if s.tokens.left > 0 then s:prefill(r, math.min(r.left, s.tokens.left)) end end
  end]], "a schedule that preempts everything for ever", true)
verdict(x.preempt_refused > 0 and x.preempted >= 64 and x.pages.owned == x.idle_pages,
  ("preempted %d times, refused %d times, in %d steps"):format(x.preempted, x.preempt_refused, steps))

-- functions of the session, which can use all it has: limits hold for what they call, compiled before or not, and no
-- pcall swallows them
do
  local m = model.load("tests/data/tiny-llama", { batch = 4, tokens = 16, context = 128, act = "f32", prefix = false })
  local function spin(n)
    local sum = 0
    for i = 1, n do sum = sum + i end
    return sum
  end
  for _ = 1, 100 do spin(1000) end
  local kept, asked = {}, 0
  local function forever() while true do pcall(function() while true do spin(10) end end) end end
  local bad = {
    function() spin(1e15) end, forever,
    function() while true do pcall(coroutine.wrap(forever)) end end,
    function() while true do pcall(table.sort, { 3, 2, 1 }, forever) end end,
    function() pcall(function() for i = 1, 2 ^ 20 do kept[i] = ("x"):rep(2 ^ 19 + i) end end) end,
    function() coroutine.yield() end, function() error {} end, function() return kept.x.y end,
  }
  local good = function(s)
    asked = asked + 1
    for r in s:running() do s:decode(r) end
    for r in s:waiting() do s:prefill(r, math.min(r.left, s.tokens.left)) end
  end
  local function answers(p)
    local rs, out, before = {}, {}, m:metrics().policy_failures
    m:set_policy(p)
    for i = 1, 4 do
      local ids = {}
      for k = 1, i * 9 do ids[k] = (i * 31 + k * 7) % 1000 + 3 end
      rs[i] = m:submit { ids = ids, max_tokens = 6, ignore_eos = true }
    end
    while m:step() > 0 do end
    for i = 1, 4 do out[i] = table.concat(rs[i].ids, " ") end
    return table.concat(out, "\n"), m:metrics().policy_failures - before
  end
  io.stderr:write "eight messages about failing schedules are expected here\n"
  local stderr, lines = io.stderr, {}
  io.stderr = { write = function(_, ...) lines[#lines + 1] = table.concat { ... } end } -- luacheck: ignore
  for i, p in ipairs(bad) do
    local got, n = answers(p)
    kept = { #kept }
    verdict(got == want and n > 0, ("session function %d: failed %d times"):format(i, n))
  end
  io.stderr = stderr -- luacheck: ignore
  stderr:write(table.concat(lines, "\n"), "\n")
  verdict(lines[1]:find "tests/lua/policy.lua:%d+: the policy ran for more than 2e%+06 instructions" ~= nil, lines[1])
  verdict(not jit.status(), "nothing is compiled while the session has a policy of its own")
  local got, n = answers(good)
  verdict(got == want and n == 0 and asked > 0, "a good one")
  m:set_policy "fair"
  verdict(jit.status(), "and then again")
  m:set_policy(good)
  m:close()
  verdict(jit.status(), "also when the model is closed")
end

-- a chunk: what prompts take of a step in which requests decode; alone they take all of it
do
  local texts = {}
  for _, chunk in ipairs { 16, 100 } do
    local c = model.load("tests/data/tiny-llama", { batch = 4, tokens = 100, chunk = chunk, context = 128,
      prefix = false })
    local prompt, most, n_steps = {}, 0, 0
    for i = 1, 70 do prompt[i] = i * 31 % 1000 + 3 end
    local first = c:submit { ids = prompt, max_tokens = 12, ignore_eos = true }
    c:step()
    local alone = c:metrics().prompt_tokens
    local second = c:submit { ids = prompt, max_tokens = 3, ignore_eos = true }
    local third = c:submit { ids = { 9, 8, 7 }, max_tokens = 3, ignore_eos = true }
    while #second.ids == 0 do
      local n, out = c:metrics().prompt_tokens, #first.ids
      c:step()
      verdict(#first.ids == out + 1, "a request that decodes gets its token beside a prompt")
      most, n_steps = math.max(most, c:metrics().prompt_tokens - n), n_steps + 1
    end
    while c:step() > 0 do end
    verdict(alone == 70 and most == math.min(chunk, 73) and n_steps == math.ceil(70 / chunk),
      ("chunk %d: %d tokens alone, at most %d in %d steps beside a decode"):format(chunk, alone, most, n_steps))
    texts[#texts + 1] = table.concat({ table.concat(first.ids, " "), table.concat(second.ids, " "),
      table.concat(third.ids, " ") }, ";")
    c:close()
  end
  verdict(texts[1] == texts[2], "a chunk changes no answer")
  local pool = require "pl.pool"
  verdict(pool.chunk(512) == 64 and pool.chunk(16384) == 2048 and pool.chunk(32) == 32 and pool.chunk(512, 7) == 7,
    "chunks of steps")
end

-- cancelling
local m = model.load("tests/data/tiny-llama", { batch = 2, context = 128, queue = 0 })
local a = m:submit { ids = { 5, 6, 7 }, max_tokens = 50, ignore_eos = true }
local b = m:submit { ids = { 5, 6, 7 }, max_tokens = 50, ignore_eos = true }
local none, why = pcall(m.submit, m, { ids = { 1 }, max_tokens = 1 })
verdict(not none and tostring(why):find "no room", "a third request of two: " .. tostring(why))
m:step()
m:step()
m.engine:cancel(a)
verdict(a.finish == "cancelled" and #a.ids == 2, "cancelled")
while m:step() > 0 do end
verdict(b.finish == "length" and #b.ids == 50, "its neighbour goes on")
m:close()
verdict(recipe.load("llama").schedule == require("pl").policy.decode_first,
  "the built-in policy is known as such")

verdicts.done()
