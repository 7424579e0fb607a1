-- Wrong arguments. Every function and method of the public surface is called with each of its arguments replaced by
-- what it cannot be, on real tensors and on a recipe's symbols: it may accept a value or raise an error object that
-- names what is wrong, but never Lua's own message, and never one that names perilune's files. Then a table of wrong
-- calls and what each says.
-- luacheck: no max line length
local pl, err, sym = require "pl", require "pl.err", require "pl.sym"
local trace, recipe, model = require "pl.trace", require "pl.recipe", require "pl.model"
local checkpoint, tokenizer, json, dev = require "pl.checkpoint", require "pl.tokenizer", require "pl.json", require "pl.dev"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local raw = { "bad argument", "attempt to", "lua/pl", "cannot convert", "stack overflow", "wrong number of arguments",
  "not enough memory", "invalid value", "missing declaration", "table index is", "nil value", "cdata value", "has no 'format'" }
local function raw_words(text)
  for _, w in ipairs(raw) do if text:find(w, 1, true) then return w end end
end

local cyclic = {}
cyclic[1], cyclic.x = cyclic, cyclic
local closed = pl.zeros { 2, 4 }
closed:close()
local odd = { n = 14, false, true, "", "nope", -1, 0.5, 0 / 0, 1 / 0, 2 ^ 53, {}, { 1.5, "x" }, cyclic, function() end, closed }

local function shown(v)
  if type(v) == "table" or type(v) == "cdata" then return "a " .. type(v) end
  return tostring(v)
end

-- what(...) with a good list of arguments and one of them wrong; also with none, and with one too many
local function sweep(name, f, good)
  local bad
  local function try(n, a, how)
    local ok, e = pcall(f, unpack(a, 1, n))
    if ok then return end
    local text = tostring(e)
    if not err.is(e) or raw_words(text) then bad = bad or ("%s %s: %s"):format(name, how, text) end
  end
  local n = table.maxn(good)
  for i = 1, n do
    for k = 0, odd.n do
      local a = { unpack(good, 1, n) }
      a[i] = odd[k]
      try(n, a, ("with argument %d = %s"):format(i, shown(odd[k])))
    end
  end
  try(0, {}, "with nothing")
  local a = { unpack(good, 1, n) }
  a[n + 1] = "more"
  try(n + 1, a, "with one more")
  for k = 1, odd.n do
    for i = 1, n do a[i] = odd[k] end
    try(n, a, "with all = " .. shown(odd[k]))
  end
  verdict(not bad, tostring(bad))
end

-- fields of an options table, each replaced by what it cannot be
local function sweep_fields(name, f, fields)
  local bad
  for _, k in ipairs(fields) do
    for i = 1, odd.n do
      local ok, e = pcall(f, k, odd[i])
      if not ok and (not err.is(e) or raw_words(tostring(e))) then
        bad = bad or ("%s { %s = %s }: %s"):format(name, k, shown(odd[i]), tostring(e))
      end
    end
  end
  verdict(not bad, tostring(bad))
end

-- Operators and fields of a tensor
local function operators(name, x)
  for what, f in pairs {
    sub = function(v) return x - v end, mul = function(v) return v * x end, div = function(v) return x / v end,
    mod = function(v) return x % v end, pow = function(v) return x ^ v end, add = function(v) return x + v end,
    unm = function() return -x end, concat = function(v) return x .. v end, lt = function() return x < x end,
    call = function(v) return x(v) end, index = function(v) return x[v] end, set = function(v) x[v] = 1 end,
    set_name = function() x.nope = 1 end,
  } do sweep(name .. " " .. what, f, { 2 }) end
end

local d = pl.dims { dim = 32, heads = 2, kv_heads = 2, head_dim = 16, eps = 1e-5, layers = 1, vocab = 10, ffn = 16,
  tied = false, rope = { dim = 16, theta = 1e4 } }
local meta = checkpoint.in_memory { format = "hf", arch = "x", tensors = { ["model.embed_tokens.weight"] = { shape = { 10, 32 } } },
  config = { hidden_size = 32, num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 16, rms_norm_eps = 1e-5 } }

-- Ops, views and blocks; make(shape, dtype) gives a tensor.
local function tensors(name, make, kv)
  local x, row, ids = make({ 3, 32 }), make({ 32 }), make({ 3 }, "i32")
  for _, o in ipairs(pl.op.all()) do
    local good = {}
    for i, p in ipairs(o.takes) do
      if p.kind == "kv" then good[i] = kv
      elseif p.kind == "in" then good[i] = (p.name == "ids" or p.name == "pos" or p.name == "rows") and ids
        or p.name == "w" and o.name ~= "linear" and o.name ~= "embed" and row or x
      else good[i] = 1 end
    end
    sweep(name .. " op." .. o.name, pl.op[o.name], good)
  end
  for m, good in pairs { slice = { x, 2, 4, 8 }, split = { x, { 16, 16 }, 2 }, heads = { x, 2 }, flat = { x }, size = { x, 1 },
    reshape = { x, 3, 2, 16 } } do
    sweep(name .. " x:" .. m, x[m], good)
  end
  operators(name, x)
  local attn = { q = x, k = x, v = x, o = x }
  for f, good in pairs { swiglu = { x, { gate = x, up = x, down = x } }, geglu = { x, { gate = x, up = x, down = x } },
    gqa = { x, attn, kv, d, { window = 4, rope = d.rope } }, logits = { x, { norm = row, head = x }, kv, d } } do
    sweep(name .. " nn." .. f, pl.nn[f], good)
  end
  sweep(name .. " sum_ranks", pl.sum_ranks, { x })
  sweep(name .. " const", pl.const, { { 1, 2 } })
  sweep(name .. " kv.append", kv.append, { kv, x, x })
end

-- eagerly
local kv = pl.kv { layers = 1, heads = 2, key_dim = 16, value_dim = 16, context = 64 }
kv:begin { 1, 2, 3 }
tensors("eager", pl.zeros, kv)
local x = pl.zeros { 2, 8 }
for m, good in pairs { values = { x }, at = { x, 1, 1 }, to = { x, "bf16" }, count = { x }, type = { x }, describe = { x } } do
  sweep("x:" .. m, x[m], good)
end
sweep("#x", function() return #x end, {})
for m, good in pairs { begin = { kv, { 1 } }, append = { kv, x, x }, commit = { kv }, abort = { kv }, len = { kv } } do
  sweep("kv:" .. m, kv[m], good)
end
sweep_fields("pl.kv", function(k, v)
  local o = { layers = 1, heads = 1, key_dim = 16, value_dim = 16, page = 16, context = 16, dtype = "f32" }
  o[k] = v
  pl.kv(o):close()
end, { "layers", "heads", "key_dim", "value_dim", "page", "dtype", "nope" })

-- on symbols
local box = { call = function(_, f, ...) return f(...) end, name = "test" }
local function on_symbols(f)
  local ok, e = pcall(trace.run, { weight_list = {}, weights = {}, dims = d, box = box, forward = f,
    cache = { layers = 1, heads = 2, key_dim = 16, value_dim = 16, page = 64 } }, require("pl.pool").with(pl.pool {}, "all"))
  verdict(not ok and err.is(e) and tostring(e):find "forward returned", "a trace of symbols: " .. tostring(e))
end
on_symbols(function(ids, _, cache)
  local function make(shape, dtype)
    if dtype == "i32" then return ids end
    local s = sym.new({ unpack(shape) }, "test")
    s.base = sym.trace:add { kind = "input", dtype = "f32", shape = shape }
    return sym.handle(s)
  end
  tensors("symbols", make, cache)
  for k = 1, odd.n do
    for _, set in ipairs { function() cache[odd[k]] = 1 end, function() cache.heads = odd[k] end, function() ids.dtype = odd[k] end } do
      local ok, e = pcall(set)
      verdict(not ok and not raw_words(tostring(e)), "a symbol is set: " .. tostring(e))
    end
  end
end)

-- pl, nn and the modules beside them
for name, c in pairs {
  ["pl.dims"] = { pl.dims, { {} } }, ["pl.weight"] = { pl.weight, { "c", "n", { 2, 2 }, 1, { pairs = 1 } } },
  ["pl.each_layer"] = { pl.each_layer, { 2 } }, ["pl.pool"] = { pl.pool, { {} } }, ["pl.recipe"] = { pl.recipe, { {} } },
  ["pl.integrity"] = { pl.integrity, { {} } }, ["pl.load"] = { pl.load, { "/no/such", {} } },
  ["pl.pack"] = { pl.pack, { "/no/such", {} } },
  ["pl.tensor"] = { pl.tensor, { { 1, 2 }, "f32" } }, ["pl.zeros"] = { pl.zeros, { { 2, 2 }, "f32" } },
  ["pl.scope"] = { pl.scope, { function() end, 1 } }, ["pl.kv"] = { pl.kv, { {} } },
  ["pl.version"] = { pl.version, {} }, ["pl.policy.decode_first"] = { pl.policy.decode_first, { {} } },
  ["nn.gqa_cache"] = { pl.nn.gqa_cache, { d } }, ["nn.freqs"] = { pl.nn.freqs, { { dim = 16, theta = 1e4 } } },
  ["nn.rope_settings"] = { pl.nn.rope_settings, { meta, 16, 1e4, "x" } }, ["nn.llama_dims"] = { pl.nn.llama_dims, { meta, {} } },
  ["nn.attn_weights"] = { pl.nn.attn_weights, { d, "p", {} } }, ["nn.mlp_weights"] = { pl.nn.mlp_weights, { d, "p" } },
  ["nn.ends"] = { pl.nn.ends, { d, 1 } }, ["nn.llama_weights"] = { pl.nn.llama_weights, { {} } },
  ["llama_weights(o)"] = { function(o) return pl.nn.llama_weights()(o) end, { d } },
  ["json.encode"] = { json.encode, { {} } }, ["json.decode"] = { json.decode, { "[]" } }, ["json.list"] = { json.list, { {} } },
  ["tokenizer.open"] = { tokenizer.open, { "/no/such" } }, ["checkpoint.open"] = { checkpoint.open, { "/no/such" } },
  ["checkpoint.in_memory"] = { checkpoint.in_memory, { { format = "hf", tensors = {} } } },
  ["recipe.load"] = { recipe.load, { "llama" } }, ["recipe.load_text"] = { recipe.load_text, { "return 1", "x" } },
  ["meta:get"] = { meta.get, { meta, "a", "b" } }, ["meta:num"] = { meta.num, { meta, "hidden_size", "b", 1 } },
  ["meta:int"] = { meta.int, { meta, "hidden_size", "b", 1 } }, ["meta:has"] = { meta.has, { meta, "a" } },
  ["meta:shape"] = { meta.shape, { meta, "model.embed_tokens.weight" } }, ["meta:tied"] = { meta.tied, { meta, true } },
} do sweep(name, c[1], c[2]) end
for k = 1, odd.n do
  local ok, e = pcall(function() return pl[odd[k]] end)
  verdict(not ok and not raw_words(tostring(e)), "pl[...]: " .. tostring(e))
end
sweep_fields("rope scaling", function(k, v)
  for _, s in ipairs { "linear", "llama3", "yarn", "factors", "none" } do
    local r = { dim = 4, theta = 1e4, scaling = s, factor = 2, from = 8192, low = 1, high = 4, factors = { 1, 2 } }
    r[k] = v
    pl.nn.freqs(r)
  end
end, { "dim", "theta", "scaling", "factor", "from", "low", "high", "factors", "fast", "slow", "turn" })
sweep_fields("pl.recipe", function(k, v)
  local r = { name = "x", dims = d, weights = function() end, forward = function() end }
  r[k] = v
  pl.recipe(r)
end, { "name", "serves", "dims", "example", "weights", "forward", "cache", "pools", "integrity", "schedule", "unused", "nope" })
sweep_fields("pl.pool", function(k, v) pl.pool { [k] = v } end, { "act", "kv", "weights", "batch", "tokens", "context", "threads" })
sweep_fields("pl.device", function(k, v) if v ~= 2 ^ 53 then dev.open { [k] = v } end end, { "path", "nope" })

-- a model and its tokenizer
local m = model.load("tests/data/tiny-llama", { batch = 2, context = 64, threads = 1 })
local tok = m:tokenizer()
for name, good in pairs { generate = { m, { prompt = { 1 }, max_tokens = 1 } }, logits = { m, { 1 } }, score = { m, { 1 }, 2 },
  ids = { m, "a" }, stops = { m }, tree = { m }, kv = { m, 16 }, plan = { m }, tokenizer = { m }, step = { m },
  prof = { m, { steps = 2 } } } do
  sweep("m:" .. name, m[name], good)
end
for name, good in pairs { encode = { tok, "a", { bos = true } }, decode = { tok, { 1 }, { specials = true } }, find = { tok, "a" },
  is_special = { tok, 1 }, stream = { tok } } do
  sweep("tok:" .. name, tok[name], good)
end
sweep("tok:stream()", tok:stream(), { 1 })
sweep_fields("m:prof", function(k, v) if v ~= 2 ^ 53 then m:prof { steps = 1, [k] = v } end end, { "steps", "nope" })
m:prof { steps = 1 }
local kept = m:prof()
for name, good in pairs { summary = { kept, 1 }, chrome = { kept } } do sweep("t:" .. name, kept[name], good) end
sweep_fields("m:generate", function(k, v)
  local o = { prompt = { 1 }, max_tokens = 1 }
  if k == "ids" then o.prompt = nil end
  o[k] = v
  m:generate(o)
end, { "prompt", "ids", "max_tokens", "temperature", "top_p", "min_p", "top_k", "seed", "repetition_penalty", "presence_penalty",
  "frequency_penalty", "logit_bias", "logprobs", "stop", "ignore_eos", "stream", "on_token", "priority", "nope" })
sweep_fields("pl.load", function(k, v) model.open("tests/data/tiny-llama", { [k] = v }):close() end,
  { "recipe", "weights", "act", "kv", "batch", "tokens", "context", "threads", "path", "progress", "nope" })
sweep("engine:cancel", m.engine.cancel, { m.engine, { finish = "stop" } })
verdict(m.engine.n_open == 0 or not m.engine.n_open, "no request is left open")

-- What wrong calls say: an expression, and a part of the message ------------------------------------------------------
local env = setmetatable({ m = m, tok = tok, x = pl.zeros { 2, 8 }, c = closed, kv = kv, d = d, json = json, op = pl.op, nn = pl.nn },
  { __index = function(_, k) return k == "pl" and pl or _G[k] end })
for _, c in ipairs {
  { "x:slice()", "slice: axis is nil, want a whole number of at least 1" },
  { "x:slice(1, 0.5, 1)", "slice: from is 0.5, want a whole number" },
  { "x:slice(1, 0, 1, 1)", "slice: 4 arguments, want at most 3" },
  { "x.slice(2)", "slice: called on 2, want a tensor" },
  { "x:split(5)", "split: sizes is 5, want a list" },
  { "x:split({ 'a' })", "split: sizes[1] is 'a', want a whole number" },
  { "x:heads()", "heads: h is nil, want a whole number" },
  { "x:heads(-4)", "heads: h is -4, want a whole number" },
  { "x:size(3)", "size: axis 3 of 2" },
  { "x:at(1)", "at: 1 indices of f32[2,8]" },
  { "x * 2", "a tensor has no operator '*'" },
  { "c:values()", "values: this tensor is closed" },
  { "op.add(c, x)", "add: argument 1 (a) is a closed tensor, want a tensor" },
  { "op.add(1, x)", "add: argument 1 (a) is 1, want a tensor" },
  { "pl.zeros(5)", "zeros: shape is 5, want a list" },
  { "pl.zeros { 2, -1 }", "zeros: shape[2] is -1, want a whole number" },
  { "pl.zeros({ 2 }, 'f33')", "zeros: dtype is 'f33', want one of" },
  { "pl.tensor { 1, { 2 } }", "tensor: entry 2 is a row beside numbers" },
  { "pl.tensor({ 1.5 }, 'i32')", "tensor: entry 1 is 1.5, want a whole number" },
  { "pl.load(5)", "load: path is 5, want a string" },
  { "pl.load('x', 5)", "load: o is 5, want a table" },
  { "pl.dims(5)", "dims: t is 5, want a table" },
  { "pl.each_layer 'a'", "each_layer: n is 'a', want a whole number" },
  { "pl.policy.decode_first {}", "want the state that a schedule is given" },
  { "pl.pool(5)", "pool: 5, want a table" }, { "pl.recipe()", "recipe: nil, want a table" },
  { "m:generate()", "generate: o is nil, want a table or a string" },
  { "m:generate { prompt = {} }", "generate.prompt: a list of 0, want at least 1" },
  { "m:generate { prompt = { 1 }, ids = { 1 } }", "generate: want one of prompt and ids" },
  { "m:generate { ids = { 1, 'x' } }", "generate.ids[2]: 'x', want a whole number" },
  { "m:generate { ids = { 5000 } }", "request: token 0 of the prompt is 5000, the vocabulary has 1024" },
  { "m:generate { ids = { 1 }, stop = { -1 } }", "generate.stop[1]: -1, want a whole number" },
  { "m:generate { ids = { 1 }, stop = { 1024 } }", "request: stop token 1024, the vocabulary has 1024" },
  { "m:generate { ids = { 1 }, max_tokens = 0.5 }", "generate.max_tokens: 0.5, want a whole number" },
  { "m:generate { ids = { 1 }, logit_bias = { [1024] = 1 } }", "logit bias: token 1024 by 1, want a token below 1024" },
  { "m:generate { ids = { 1 }, logit_bias = { [-1] = 1 } }", "generate.logit_bias: an entry for -1, want token ids" },
  { "m:generate { ids = { 1 }, logit_bias = { [1.5] = 1 } }", "generate.logit_bias: an entry for 1.5, want token ids" },
  { "m:generate { ids = { 1 }, logit_bias = { [1] = 'x' } }", "generate.logit_bias[1]: 'x', want a number" },
  { "m:score({ 1 }, -1)", "score: k is -1, want a whole number of at least 1" },
  { "m:score(5)", "score: prompt is 5, want a text or a list of ids" },
  { "m:logits {}", "logits: prompt is a list of 0, want at least 1" },
  { "m:logits { 5000 }", "token 1 is 5000, want an id below 1024" },
  { "tok:encode()", "encode: text is nil, want a string" },
  { "tok:encode('a', { bso = true })", "did you mean 'bos'?" },
  { "tok:decode { 0.5 }", "decode: ids[1] is 0.5, want a whole number" },
  { "kv:begin {}", "begin: ids is a list of 0, want at least 1" },
  { "json.encode(print)", "json: cannot write a function" },
  { "json.decode '{'", "json: " },
  { "nn.gqa(x, {}, kv, {})", "gqa: d.head_dim is nil, want a whole number" },
  { "nn.gqa(x, {}, kv, { heads = 2, kv_heads = 2, head_dim = 16 }, { windw = 4 })", "gqa: o.windw is not known, want one of rope window" },
  { "nn.gqa(x, {}, kv, { heads = 2, kv_heads = 2, head_dim = 16 }, { window = -1 })", "gqa: o.window is -1, want" },
  { "nn.llama_weights { pair = true }", "llama_weights: o.pair is not known, want one of bias norm pairs plus" },
  { "nn.llama_weights { pairs = 1 }", "llama_weights: o.pairs is 1, want a boolean" },
  { "nn.attn_weights(d, 'p', { biass = true })", "attn_weights: o.biass is not known" },
  { "nn.freqs { dim = 4, theta = 1e4, scalin = 'linear' }", "freqs: r.scalin is not known" },
  { "nn.swiglu(x)", "swiglu: w is nil, want a table" },
  { "nn.logits(x, {}, x, d)", "logits: kv is a cdata, want the cache" },
  { "nn.freqs { dim = 4, theta = 1e4, scaling = 'llama3', factor = 2 }", "rope scaling 'llama3'.from: nil" },
} do
  local ok, e = pcall(setfenv(assert(loadstring("return " .. c[1])), env))
  verdict(not ok and err.is(e) and tostring(e):find(c[2], 1, true), ("%s\n  %s\n  want: %s"):format(c[1], tostring(e), c[2]))
end

-- Recipes that turn on what they are given, or return what they should not: each is told so at a line of its own
local text = [[
local pl, nn = require "pl", require "pl.nn"
local d = pl.dims { vocab = 10, dim = 32, layers = 1, heads = 2, kv_heads = 2, head_dim = 16, ffn = 16, eps = 1e-5,
  tied = false, rope = { dim = 16, theta = 1e4 } }
local function weights(d)
  local w = nn.llama_weights {} (d)
  WEIGHTS
  return w
end
local function forward(ids, w, kv)
  local x = pl.op.embed(w.embed, ids)
  for i in pl.each_layer(1) do
    FORWARD
    x = x + nn.gqa(pl.op.rms_norm(x, w[0].norm1, d.eps), w[0].attn, kv, d)
  end
  return nn.logits(x, w, kv, d)
end
return pl.recipe { name = "x", dims = d, weights = weights, forward = forward, CACHE }
]]
local function try(parts)
  local r = recipe.load_text((text:gsub("%f[%w]%u%u%u+%f[%W]", function(k) return parts[k] or "" end)), "x.lua",
    { instructions = 1e6, seconds = 5, megabytes = 64 })
  return recipe.trace(recipe.fit(r))
end
local ok, e = pcall(try, {})
verdict(ok, "the recipe as it should be: " .. tostring(e))
for _, c in ipairs {
  { "x.lua:6: a tensor cannot be changed: 'shape' is set", WEIGHTS = "w.embed.shape = { 1 }" },
  { "a tensor cannot be changed", WEIGHTS = "w.embed.class = 'x'" },
  { "", WEIGHTS = "w.embed.shape[1] = 99" }, -- of a copy
  { "x.lua:6: weights[0].norm1: 5, want pl.weight", WEIGHTS = "w[0].norm1 = 5", at = true },
  { "weights.f: a function, want pl.weight", WEIGHTS = "w.f = print" },
  { "x.lua:6: weight model.norm.weight is declared twice", WEIGHTS = "w.again = pl.weight('norm', 'model.norm.weight', { 32 })" },
  { "tables nested too deeply, or within themselves", WEIGHTS = "w.me = w" },
  { "has an entry whose name is a table", WEIGHTS = "w[setmetatable({}, { __tostring = function() while true do end end })] = w.norm" },
  { "weights returned 5, want a table", WEIGHTS = "w = 5" },
  { "rms_norm: argument 2 (w) is 5, want a tensor", FORWARD = "w[0].norm1 = 5" },
  { "a tensor cannot be changed", FORWARD = "x.cut = 1" },
  { "the cache cannot be changed: 'heads' is set", FORWARD = "kv.heads = 7" },
  { "x is not among the recipe's weights", FORWARD = "pl.op.rms_norm(x, pl.weight('norm', 'x', { 32 }), 1)" },
  { "cache.page: 15", CACHE = "cache = { layers = 1, heads = 2, key_dim = 16, value_dim = 16, page = 15 }" },
  { "instructions", CACHE = "cache = function() while true do end end" },
  { "cache has no", CACHE = "cache = { [setmetatable({}, { __tostring = function() return 'k' end })] = 1 }" },
  { "instructions", CACHE = "cache = { [setmetatable({}, { __tostring = function() while true do end end })] = 1 }" },
} do
  ok, e = pcall(try, c)
  local said = ok and "" or tostring(e)
  if c.at then c[1] = c[1]:gsub("^x.lua:%d+: ", "") end
  verdict(said:find(c[1], 1, true) and ok == (c[1] == "") and (ok or err.is(e)) and not raw_words(said),
    ("%s\n  %s\n  want: %s"):format(c.WEIGHTS or c.FORWARD or c.CACHE, said, c[1]))
end

m:close()
verdicts.done()
