-- Embeddings of the engine: the hidden states of a plain forward of the ops and of a reference; the same bits alone,
-- beside others, in chunks of any size, and where the prefix cache has a part; cut, cancelled, refused.
local abi, pl, tensor = require "pl.abi", require "pl", require "pl.tensor"
local cjson = require "cjson"
local path = "tests/data/tiny-llama"
local verdicts = dofile "tests/verdicts.lua"
local ok = verdicts.ok
local function raises(f, pattern)
  local fine, e = pcall(f)
  ok(not fine and tostring(e):find(pattern), ("%s: %s"):format(pattern, tostring(e)))
end

local function numbers(t)
  local n, out = tonumber(t.dim[0]), {}
  local v = abi.array("float", n)
  abi.check(abi.C.pl_tensor_get_f32(t, v, n, abi.err))
  for i = 1, n do out[i] = v[i - 1] end
  return out
end
local function bits(t) return abi.string(abi.cast("const char *", t.data), tonumber(t.dim[0]) * 4) end
local function ids_of(n, seed)
  local ids = {}
  for k = 1, n do ids[k] = (seed * 37 + k * 11 + k * k % 7) % 1000 + 3 end
  return ids
end
local function finish(m, r)
  local guard = 0
  while not r.finish do
    m:step()
    guard = guard + 1
    assert(guard < 10000, "the engine does not come to an end")
  end
  return r
end
-- rows [n][D] of doubles as an embedding is made of them
local function pooled(rows, kind, n)
  local sum, square = {}, 0
  for d = 1, n do
    sum[d] = kind == "last" and rows[#rows][d] or 0
    for t = 1, kind == "mean" and #rows or 0 do sum[d] = sum[d] + rows[t][d] end
    square = square + sum[d] ^ 2
  end
  for d = 1, n do sum[d] = sum[d] / math.sqrt(square) end
  return sum
end
local function largest(a, b)
  local max = #a == #b and 0 or math.huge
  for i = 1, #a do max = math.max(max, math.abs(a[i] - (b[i] or math.huge))) end
  return max
end

-- the ops themselves, called on real tensors, and the reference's hidden states
do
  local m = pl.load(path, { act = "f32", kv = "f32", batch = 4, tokens = 24, context = 1024 })
  tensor.act = "f32"
  local width = m.trace.width
  for _, n in ipairs { 1, 2, 16, 23, 64, 65, 101 } do
    local ids, kv, rows = ids_of(n, n), m:kv(256), {}
    local _, hidden = m.fitted.forward(kv:begin(ids), m:tree(), kv, m.d)
    kv:commit()
    kv:close()
    for t = 1, n do rows[t] = numbers(hidden:slice(1, t - 1, 1):reshape(width)) end
    for _, kind in ipairs { "last", "mean" } do
      for _, dimensions in ipairs { width, 1, 17 } do
        local got = m:embed(ids, { pooling = kind, dimensions = dimensions })
        local d = largest(numbers(got), pooled(rows, kind, dimensions))
        ok(d < 2e-7, ("%d tokens, %s, %d values: %g from the ops"):format(n, kind, dimensions, d))
      end
    end
  end
  for line in io.lines "tests/golden/tiny-llama/logits.jsonl" do
    local g = cjson.decode(line)
    local want, got = g.hidden_last[#g.hidden_last], numbers(m:embed(g.ids))
    local max = 0
    for i, v in ipairs(want.first8) do max = math.max(max, math.abs(got[i] - v / want.l2)) end
    ok(max < 2e-5, ("golden %s: %g"):format(g.id, max))
  end
  m:close()
end

-- the same bits, whatever runs beside it and however the prompt is cut into steps, of both kinds, on one thread and two
for _, o in ipairs { { "bf16", "bf16", 1 }, { "bf16", "fp8", 2 }, { "int8", "f32", 2 }, { "f32", "f32", 1 } } do
  local want = {}
  for _, tokens in ipairs { 200, 3, 1, 64, 17 } do
    local what = ("act %s, cache %s, steps of %d"):format(o[1], o[2], tokens)
    local m = pl.load(path, { act = o[1], kv = o[2], kv_scale = o[2] == "fp8" and "token" or nil, threads = o[3],
      batch = 8, tokens = tokens, context = 256, prefix = tokens ~= 64 })
    local all = {}
    for i = 1, 8 do
      all[i] = m:submit { ids = ids_of(1 + i * 23 % 97, i), embed = i % 2 == 0 and "mean" or "last" }
      -- answers in the same steps
      if i % 3 == 0 then m:submit { ids = ids_of(5 + i, i), max_tokens = 30, ignore_eos = true } end
      if i == 4 then m:step() end
    end
    for i = 1, 8 do
      local got = bits(finish(m, all[i]).embedding)
      ok(all[i].finish == "stop" and all[i].n_out == 0 and #all[i].ids == 0, what .. ": how it ended")
      want[i] = want[i] or got
      ok(got == want[i], ("%s: request %d among others"):format(what, i))
    end
    while m:step() > 0 do end -- luacheck: ignore
    -- again, alone: where there is a prefix cache it has most of the prompts
    for i = 1, 8 do
      local r = finish(m, m:submit { ids = ids_of(1 + i * 23 % 97, i), embed = i % 2 == 0 and "mean" or "last" })
      ok(bits(r.embedding) == want[i], ("%s: request %d again"):format(what, i))
      local n = r.prompt_tokens -- in steps of 1 there is room for one sequence's pages
      ok(tokens == 1 or r.n_cached == (tokens ~= 64 and i % 2 == 1 and n > 64 and 64 or 0),
        ("%s: %d tokens of %d from the cache"):format(what, r.n_cached, n))
    end
    local metrics = m:metrics()
    ok(metrics.finished.stop == 16 and metrics.ttft_s.n == 2, what .. ": metrics")
    m:close()
  end
end

-- few pages: requests that give theirs up begin again, and say the same
do
  local m = pl.load(path, { act = "f32", batch = 4, tokens = 16, context = 512 })
  local solo = {}
  for i = 1, 4 do solo[i] = bits(m:embed(ids_of(150 + i, i), { pooling = i < 3 and "mean" or "last" })) end
  m:close()
  m = pl.load(path, { act = "f32", batch = 4, tokens = 16, context = 512 })
  local n = 0
  m:set_policy(function(s)
    n = n + 1
    local victim = n % 7 == 0 and s.pages.reserve > 1 and s:youngest() -- others run
    if victim then s:preempt(victim) end
    for r in s:waiting() do s:prefill(r, math.min(r.left, 4, s.tokens.left)) end
  end)
  local all = {}
  for i = 1, 4 do all[i] = m:submit { ids = ids_of(150 + i, i), embed = i < 3 and "mean" or "last" } end
  for i = 1, 4 do ok(bits(finish(m, all[i]).embedding) == solo[i], "preempted: request " .. i) end
  ok(m:metrics().preempted > 3, "requests were preempted")
  m:close()
end

-- cancelled, refused, out of reach
do
  local m = pl.load(path, { act = "f32", batch = 2, tokens = 16, context = 128 })
  local r = m:submit { ids = ids_of(100, 1), embed = "mean" }
  m:step()
  m.engine:cancel(r)
  ok(r.finish == "cancelled" and r.embedding == nil, "cancelled")
  local two = { m:submit { ids = ids_of(40, 2), embed = "mean" }, m:submit { ids = ids_of(40, 2), embed = "last" } }
  finish(m, two[1])
  finish(m, two[2])
  ok(bits(two[1].embedding) ~= bits(two[2].embedding), "a mean is not the last")
  ok(m:metrics().pages.owned == m:metrics().idle_pages, "every page is given back")
  local again = bits(m:embed(ids_of(40, 2), { pooling = "mean" }))
  ok(again == bits(two[1].embedding), "an embedding stays as it was when its place has another")
  raises(function() m:embed(ids_of(129, 3)) end, "129 tokens, the cache has room for 128")
  raises(function() m:embed {} end, "a list of 0")
  raises(function() m:embed({ 5 }, { dimensions = 193 }) end, "193 values, want 1 to 192")
  raises(function() m:embed({ 5 }, { pooling = "first" }) end, "want one of last mean")
  raises(function() m:submit { ids = { 5 }, dimensions = 3 } end, "dimensions: only with embed")
  raises(function() m:submit { ids = { 5 }, embed = "cls" } end, "want one of last mean")
  raises(function() m:generate { ids = { 5 }, embed = "last" } end, "m:embed")
  ok(#m:generate({ ids = ids_of(40, 2), max_tokens = 3, ignore_eos = true }).ids == 3, "answers as before")
  -- a long text, that a front thread tokenises
  local text = ("a b "):rep(600)
  local late = finish(m, m:submit { prompt = text, embed = "last" })
  ok(late.finish == "error" and late.error:find "the cache has room for 128", "a long text: " .. tostring(late.error))
  m:close()
end

-- recipes: which kind is theirs; one that returns logits alone; one that returns something else
do
  local function load(change, by)
    local f = assert(io.open "recipes/llama.lua")
    local text = f:read "*a"
    f:close()
    local a, b = text:find(change, 1, true)
    local name = os.tmpname()
    local g = assert(io.open(name .. ".lua", "w"))
    g:write(text:sub(1, a - 1), by, text:sub(b + 1))
    g:close()
    local fine, m = pcall(pl.load, name .. ".lua", { weights = path, act = "f32", batch = 2, context = 64 })
    os.remove(name)
    os.remove(name .. ".lua")
    if not fine then error(m, 0) end
    return m
  end
  local m = load('name = "llama",', 'name = "llama", pooling = "mean",')
  ok(m:pooling() == "mean" and bits(m:embed(ids_of(9, 1))) == bits(m:embed(ids_of(9, 1), { pooling = "mean" })),
    "the recipe's pooling")
  m:close()
  m = load("return nn.logits(x, w, kv, d)", "return (nn.logits(x, w, kv, d))")
  ok(m:pooling() == nil, "no hidden states")
  raises(function() m:embed { 5 } end, "returns logits alone")
  m:close()
  for by, pattern in pairs { ["op.gather(x, kv.rows)"] = "want %[T,D%], the hidden states",
    ["x:slice(2, 0, 8)"] = "want %[T,D%]", ["5"] = "returned 5 beside the logits" } do
    raises(function() load("return nn.logits(x, w, kv, d)", "return (nn.logits(x, w, kv, d)), " .. by) end, pattern)
  end
  raises(function() load('name = "llama",', 'name = "llama", pooling = "first",') end, "want one of last mean")
end

verdicts.done()
