-- Recipes that turn on the program which reads them: what they are given cannot be changed, closed or crashed, and
-- what they hand back runs nothing of theirs outside of the sandbox.
local recipe, err, model = require "pl.recipe", require "pl.err", require "pl.model"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local text = [[
local pl = require "pl"
local nn = require "pl.nn"
local r
local function loop() while true do end end
local function forward(ids, w, kv, d)
  FORWARD
  local x = pl.op.embed(w.embed, ids)
  for i in pl.each_layer(d.layers) do
    local l = w[i]
    x = x + nn.gqa(pl.op.rms_norm(x, l.norm1, d.eps), l.attn, kv, d)
    x = x + nn.swiglu(pl.op.rms_norm(x, l.norm2, d.eps), l.mlp)
  end
  return nn.logits(x, w, kv, d)
end
local p = pl.pool { batch = 2, tokens = 64, weights = { rest = "stored" } }
r = pl.recipe {
  name = "hostile", dims = function(meta) DIMS return nn.llama_dims(meta) end,
    weights = nn.llama_weights { pairs = true },
  forward = forward, cache = nn.gqa_cache, pools = { all = p },
  schedule = function(s) SCHEDULE return pl.policy.decode_first(s) end,
}
LAST
return r
]]

-- Loads and runs the recipe with parts in place; returns what is wrong with it, or nil.
local function try(parts)
  local name = os.tmpname() -- an empty file, which is not the one that is written
  os.remove(name)
  local path = name .. ".lua"
  local f = assert(io.open(path, "wb"))
  f:write((text:gsub("%f[%w]%u%u%u+%f[%W]", function(k) return parts[k] or "" end)))
  f:close()
  local m
  local stderr, said = io.stderr, {}
  io.stderr = { write = function(_, ...) for _, s in ipairs { ... } do said[#said + 1] = s end end } -- luacheck: ignore
  local ok, e = pcall(function()
    m = model.load(path, { weights = "tests/data/tiny-llama", threads = 1 })
    local g = m:generate { prompt = { 1, 2, 3 }, max_tokens = 2, ignore_eos = true }
    assert(#g.ids == 2)
  end)
  io.stderr = stderr -- luacheck: ignore
  if m then m:close() end
  os.remove(path)
  verdict(ok or err.is(e), "an error object: " .. tostring(e))
  return table.concat(said) .. (ok and "" or tostring(e))
end

verdict(try {} == "", "the recipe as it should be")
for _, c in ipairs {
  -- what dims is given
  { "has no 'close'", DIMS = "meta:close()" }, { "cannot be changed", DIMS = "meta.info = loop" },
  { "cannot be changed", DIMS = "meta.has = loop" }, { "has no 'ptr'", DIMS = "local q = meta.ptr" },
  { "has no 'tensor'", DIMS = "meta:tensor 'model.norm.weight'" }, { "want a string", DIMS = "meta:has(nil)" },
  { "want a string", DIMS = "meta:get({}, {})" }, { "belongs to perilune", DIMS = "rawset(meta, 'get', loop)" },
  -- what a policy is given: decode_first takes the place of one that fails
  { "cannot be set", SCHEDULE = "s._ptr = nil" }, { "cannot be set", SCHEDULE = "s.running = loop" },
  { "cannot be set", SCHEDULE = "s.tokens.left = 1e9" }, { "has no '_kv'", SCHEDULE = "local q = s._kv" },
  { "want a request", SCHEDULE = "s:decode(nil)" }, { "want a request", SCHEDULE = "s:prefill({ id = 1 }, 1)" },
  { "want a whole number", SCHEDULE = "for q in s:waiting() do s:prefill(q, 0 / 0) end" },
  { "constant", SCHEDULE = "for q in s:waiting() do q.left = 9 end" },
  { "cannot be indexed", SCHEDULE = "for q in s:waiting() do local x = q[1e9].id end" },
  { "arithmetic", SCHEDULE = "for q in s:waiting() do local x = (q + 1e8).id end" },
  { "arithmetic", SCHEDULE = "for q in s:waiting() do s:decode(q) local x = (s:youngest() - 1e8).id end" },
  -- what pl.recipe returned is not what the program goes by
  { "", LAST = "p.with = loop" }, { "want one of", LAST = "p.act = 'f64'" }, { "want at most",
    LAST = "p.batch = 2 ^ 40" },
  { "has no", LAST = "r.pools = setmetatable({}, { __index = loop })" },
  { "", LAST = "r.serves = setmetatable({}, { __index = loop })" },
  { "attempt to", FORWARD = "r.box.limits = nil" },
  -- errors
  { "error object is a table", FORWARD = "error(setmetatable({ notes = {}, msg = 'x' }, { __tostring = loop }))" },
  { "a\\27[31mb", FORWARD = "error 'a\\27[31mb'" },
  { "error",
    FORWARD = "local _, e = pcall(ids.slice, ids, 9) e.notes = 1 " ..
      "e.msg = setmetatable({}, { __concat = loop }) error(e)" },
} do
  local said = try(c)
  verdict(said:find(c[1], 1, true) and (said ~= "") == (c[1] ~= ""),
    ("%s%s%s%s\n     says %q, want %q"):format(c.DIMS or "",
    c.SCHEDULE or "", c.LAST or "", c.FORWARD or "", said, c[1]))
  verdict(not said:find "\27", "a control character reaches the terminal")
end
-- a cache for eager calls, used out of order
local pl = require "pl"
local function kv_fails(want, f)
  local kv = pl.kv { layers = 1, heads = 2, key_dim = 16, value_dim = 16, context = 64 }
  local fine, e = pcall(f, kv, pl.zeros { 1, 2, 16 })
  verdict(not fine and tostring(e):find(want, 1, true), ("%s, want %s"):format(tostring(e), want))
  kv:close()
end
kv_fails("within a step", function(kv) kv:begin { 1 } kv:begin { 1 } end)
kv_fails("want a list", function(kv) kv:begin() end)
for _, name in ipairs { "begin", "commit", "abort", "len" } do
  kv_fails("closed", function(kv) kv:close() kv[name](kv, { 1 }) end)
end
kv_fails("closed", function(kv, x)
  kv:begin { 1 }
  kv:close()
  for _ in pl.each_layer(1) do kv:append(x, x) end
end)

-- a request's own function that fails ends that request alone; one that generates gets its own answer
do
  local m = model.load("tests/data/tiny-llama", { batch = 4, context = 64 })
  local ask = { prompt = { 5, 6, 7 }, max_tokens = 6, ignore_eos = true }
  local want = table.concat(m:generate(ask).ids, ",")
  local beside = m:submit { prompt = { 5, 6, 7 }, max_tokens = 6, ignore_eos = true }
  local fine, e = pcall(m.generate, m, { prompt = { 5, 6 }, max_tokens = 6, ignore_eos = true,
    on_token = function() error "mine" end })
  verdict(not fine and tostring(e):find "mine", "an error of on_token comes out: " .. tostring(e))
  fine, e = pcall(m.generate, m, ask)
  verdict(fine and table.concat(e.ids, ",") == want, "the next answer is not disturbed: " .. tostring(e))
  verdict(beside.finish == "length" and table.concat(beside.ids, ",") == want, "nor is a neighbour's")
  verdict(m.engine.n_open == 0, "no request stays open")
  local inner, asked -- its own step runs the outer request too, so on_token must not ask again
  local outer = m:generate { prompt = { 5, 6, 7 }, max_tokens = 6, ignore_eos = true,
    on_token = function()
      if not asked then
        asked = true
        inner = table.concat(m:generate(ask).ids, ",")
      end
    end }
  local rs = {}
  for i = 1, 4 do
    rs[i] = m:submit { prompt = { 5, 6, 7 }, max_tokens = 6, ignore_eos = true, on_token = i == 2 and function()
      m:step()
    end or nil }
  end
  while m:step() > 0 do end
  for i = 1, 4 do
    verdict(table.concat(rs[i].ids, ",") == want, ("a step within on_token, request %d: %s"):format(i,
      table.concat(rs[i].ids, ",")))
  end
  verdict(inner == want and table.concat(outer.ids, ",") == want, "generate within on_token: " .. tostring(inner))
  m:close()
end

-- a policy of the session's own: it can reach the engine that asks it, and keep its state for longer than that
do
  local m = model.load("tests/data/tiny-llama", { batch = 4, context = 64 })
  local ask = { prompt = { 5, 6, 7 }, max_tokens = 6, ignore_eos = true }
  local want, said, kept = table.concat(m:generate(ask).ids, ","), {}, {}
  m:set_policy(function(s)
    local function refused(f, ...) said[#said + 1] = tostring(select(2, pcall(f, ...))) end
    kept = { s = s, tokens = s.tokens, running = s:running(), waiting = s:waiting(), decode = s.decode }
    kept.r = kept.running() or kept.waiting()
    refused(m.step, m)
    refused(m.close, m)
    refused(m.generate, m, { prompt = { 1 }, max_tokens = 0 })
    m.engine:cancel(m:submit { prompt = { 9 }, max_tokens = 1 })
    m:logits { 5, 6 }
    require("pl.policy").decode_first(s)
  end)
  local function over(when)
    for what, f in pairs { running = function() kept.running() end, waiting = function() kept.waiting() end,
      decode = function() kept.decode(kept.s, kept.r) end, preempt = function() kept.s:preempt(kept.r) end,
      youngest = function() kept.s:youngest() end, tokens = function() return kept.tokens.left end,
      now = function() return kept.s.now end, served = function() kept.s:served(kept.r) end,
      free = function() return kept.s.pages.free end, all = function() for _ in kept.s:waiting() do end end } do
      local fine, e = pcall(f)
      verdict(not fine and tostring(e):find("the step is over", 1, true), what .. when .. ": " .. tostring(e))
    end
  end
  local g = m:generate(ask)
  verdict(table.concat(g.ids, ",") == want and m:metrics().policy_failures == 0, "a policy that meddles: " .. #said)
  verdict(#said == 18, "asked in each step: " .. #said)
  for i, line in ipairs(said) do
    verdict(line:find("while a policy plans a step", 1, true), ("%d: %s"):format(i, line))
  end
  over " between steps"
  m:set_policy(function() while true do end end) -- a compiled loop would never meet its limit
  verdict(table.concat(m:generate(ask).ids, ",") == want and m:metrics().policy_failures > 0, "an endless function")
  m:set_policy "decode_first"
  m:generate { prompt = { 1 }, max_tokens = 1 }
  -- what an interrupted step has planned does not stay in the next one's plan
  local before = m.engine.run_policy
  m.engine.run_policy = function(_, own)
    require("pl.policy").decode_first(own)
    error "interrupted"
  end
  local r = m:submit(ask)
  verdict(not pcall(m.step, m), "an interrupted step")
  m.engine.run_policy = before
  while m:step() > 0 do end
  verdict(table.concat(r.ids, ",") == want, "after an interrupted step: " .. table.concat(r.ids, ","))
  m:close()
  over " after close"
end

-- a model after close()
local m = model.load "tests/data/tiny-llama-gguf/model.gguf"
local tok = m:tokenizer()
m:close()
m:close()
verdict(not pcall(function() return tok:encode "a" end), "encode after close")
for _, name in ipairs { "generate", "logits", "score", "ids", "tokenizer", "stops", "submit", "step", "tree", "kv" } do
  local fine, e = pcall(function() return m[name](m, { 1 }) end)
  verdict(not fine and tostring(e):find("closed", 1, true), name .. " after close: " .. tostring(e))
end

-- Ctrl-C while a model is loaded ends the load
local ffi = require "ffi"
ffi.cdef "int raise(int);"
ffi.C.raise(2)
local ok, e = pcall(model.load, "tests/data/tiny-llama")
verdict(not ok and tostring(e):find "interrupted", "Ctrl-C while loading: " .. tostring(e))
for verb, rest in pairs { run = "--max-tokens 2", score = "--json", calibrate = "--out /dev/null" } do
  local first, second = rest:match "^(%S+) ?(%S*)$"
  arg = { verb, "tests/data/tiny-llama", "--ids", "1,2,3", first, second ~= "" and second or nil } -- luacheck: ignore
  local stderr, said = io.stderr, {}
  io.stderr = { write = function(_, ...) said[#said + 1] = table.concat { ... } end } -- luacheck: ignore
  ffi.C.raise(2)
  local code = require("pl.cli").main()
  io.stderr = stderr -- luacheck: ignore
  verdict(code == 130 and table.concat(said):find "interrupted", ("Ctrl-C in %s: %s"):format(verb, tostring(code)))
end
do
  local m2 = model.load "tests/data/tiny-llama"
  local steps = 0
  local r = m2:submit { prompt = { 1, 2 }, max_tokens = 4, ignore_eos = true, on_token = function()
    steps = steps + 1
    if steps == 2 then ffi.C.raise(2) end
  end }
  local fine, why = pcall(function() while m2:step() > 0 do end end)
  verdict(not fine and tostring(why):find "interrupted" and #r.ids == 2, "Ctrl-C in m:step: " .. tostring(why))
  while m2:step() > 0 do end
  verdict(#r.ids == 4 and r.finish == "length", "the request can go on")
  ffi.C.raise(2)
  verdict(m2:generate { prompt = { 1 } }.finish == "cancelled", "Ctrl-C in m:generate")
  ffi.C.raise(2)
  fine, why = pcall(m2.score, m2, { 1, 2 })
  verdict(not fine and tostring(why):find "interrupted", "Ctrl-C in m:score: " .. tostring(why))
  m2:close()
  ffi.C.raise(2)
  fine, why = pcall(require("pl.simulate").run, { requests = 10 })
  verdict(not fine and tostring(why):find "interrupted", "Ctrl-C in simulate: " .. tostring(why))
end
verdict(recipe.load "llama".name == "llama", "the state is as it was")
verdicts.done()
