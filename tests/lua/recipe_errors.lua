-- Wrong recipes: each kind of mistake gives one stable text that shows the author's line
-- (tests/golden/errors). PL_UPDATE=1 writes the texts anew, to be read before they are committed.
-- luacheck: no max line length
local recipe = require "pl.recipe"

local base = [[
local pl = require "pl"
local op, nn, W = pl.op, require "pl.nn", pl.weight

local d = pl.dims { vocab = 100, dim = 64, layers = 2, heads = 4, kv_heads = 2, head_dim = 16, ffn = 96, eps = 1e-5,
  tied = false, rope = { dim = 16, theta = 1e4 } }

local function mlp(x, w)
  return op.linear(op.swiglu(op.linear(x, w.gate), op.linear(x, w.up)), w.down)
end

local function forward(ids, w, kv)
  local x = op.embed(w.embed, ids)
  for i in pl.each_layer(d.layers) do
    local l = w[i]
    x = x + nn.gqa(op.rms_norm(x, l.norm1, d.eps), l.attn, kv, d)
    x = x + pl.sum_ranks(mlp(op.rms_norm(x, l.norm2, d.eps), l.mlp))
  end
  return nn.logits(x, w, kv, d)
end

return pl.recipe {
  name = "mine", dims = d, weights = nn.llama_weights {}, forward = forward, cache = nn.gqa_cache,
  pools = { all = pl.pool { act = "f32", weights = { rest = "bf16" } } },
  schedule = pl.policy.decode_first,
}
]]

-- name of the golden text, what is replaced, by what
local cases = {
  { "shape", "w.up)), w.down)", "w.up)), w.gate)" },
  { "shape_in_nn", "op.rms_norm(x, l.norm1, d.eps), l.attn", "op.linear(x, l.mlp.gate), l.attn" },
  { "name", "l.norm2", "l.nrom2" },
  { "wrong_index", "w[i]", "w[i - 1]" },
  { "wrong_index_from_1", "weights = nn.llama_weights {}", "weights = function(m) local t = nn.llama_weights {}(m); t[0] = nil; return t end" },
  { "swapped", "op.linear(x, w.up)), w.down)", "op.linear(w.up, x)), w.down)" },
  { "missing_weight", nil, nil }, -- below: needs a checkpoint
  { "unknown_op", "op.swiglu(", "op.swigloo(" },
  { "wrong_class", 'weights = { rest = "bf16" }', 'weights = { mpl = "f32", rest = "bf16" }' },
  { "no_format", 'weights = { rest = "bf16" }', 'weights = { attn = "bf16" }' },
  { "bad_format", 'rest = "bf16"', 'rest = "bf17"' },
  { "non_tensor", "op.linear(x, w.up))", "3)" },
  { "lua_error", "local l = w[i]", "local l = w[i] .. nothing_here" },
  { "lua_error_nil", "local l = w[i]", "local l = w[i]; local n = nil; n.x = 1" },
  { "syntax", "local l = w[i]", "local l = = w[i]" },
  { "endless_loop", "local l = w[i]", "local l = w[i]; while true do end" },
  { "endless_loop_pcall", "local l = w[i]",
    "local l = w[i]; while true do pcall(function() while true do end end) end" },
  { "endless_loop_xpcall", "local l = w[i]",
    "local l = w[i]; while true do xpcall(function() while true do end end, function() while true do end end) end" },
  { "endless_loop_coroutine", "local l = w[i]",
    "local l = w[i]; while true do coroutine.wrap(function() while true do end end)() end" },
  { "memory", "local l = w[i]",
    "local l = w[i]; local t = {}; while true do t[#t + 1] = ('x'):rep(1000) .. #t end" },
  { "forbidden_global", "local l = w[i]", "local l = w[i]; os.execute 'true'" },
  { "forbidden_module", 'require "pl.nn"', 'require "ffi"' },
  { "new_global", "local l = w[i]", "layer = w[i]; local l = layer" },
  { "wrong_dims", "d.layers) do", "d.leyers) do" },
  { "bad_dims", "layers = 2, heads", "layers = 2, dim = -64, heads" },
  { "missing_sum", "pl.sum_ranks(mlp(op.rms_norm(x, l.norm2, d.eps), l.mlp))",
    "mlp(op.rms_norm(x, l.norm2, d.eps), l.mlp)" },
  { "missing_eps", "local x = op.embed(w.embed, ids)",
    "local x = op.rms_norm(op.embed(w.embed, ids), w.norm)" },
  { "all_rows", "nn.logits(x, w, kv, d)", "op.linear(op.rms_norm(x, w.norm, d.eps), w.head)" },
  { "no_result", "return nn.logits", "local _ = nn.logits" },
  { "unknown_field", "schedule = pl", "shedule = pl" },
  { "no_recipe", "return pl.recipe {", "local _ = pl.recipe {" },
  { "append_twice", "local l = w[i]", "local l = w[i]; nn.gqa(x, l.attn, kv, d)" },
  { "outside_layer", "return nn.logits", "x = x + nn.gqa(x, w[0].attn, kv, d); return nn.logits" },
  { "tail_call", "local function mlp(x, w)\n",
    "local function down(x, w) return op.rms_norm(x, w.gate, d.eps) end\nlocal function mlp(x, w)\n  x = x + down(x, w)\n" },
}

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local s = f:read "*a"
  f:close()
  return s
end

-- A checkpoint that holds what the base recipe wants, but for what `change` does to it.
local function stub_checkpoint(model, change)
  local tensors = {}
  for _, w in ipairs(model.weight_list) do tensors[w.weight] = { dtype = "bf16", shape = w.shape } end
  change(tensors)
  return require("pl.checkpoint").in_memory { format = "hf", tensors = tensors }
end

local function attempt(name, from, to)
  if name:match "^missing_weight" then
    local r = recipe.load_text(base, "recipe.lua")
    local m = recipe.fit(r)
    local ck = stub_checkpoint(m, function(t)
      t["model.layers.1.mlp.up_projection.weight"] = t["model.layers.1.mlp.up_proj.weight"]
      t["model.layers.1.mlp.up_proj.weight"] = nil
    end)
    local tr = recipe.trace(m)
    return require("pl.load").check(m, tr, ck)
  end
  local a, b = base:find(from, 1, true)
  assert(a, name .. ": nothing to replace")
  local text = base:sub(1, a - 1) .. to .. base:sub(b + 1)
  local r = recipe.load_text(text, "recipe.lua", { instructions = 3e6, seconds = 20, megabytes = 64 })
  return recipe.trace(recipe.fit(r))
end

local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

-- the base itself is right
local ok, why = pcall(function() return recipe.trace(recipe.fit(recipe.load_text(base, "recipe.lua"))) end)
verdict(ok, "base: " .. tostring(why))

for _, c in ipairs(cases) do
  local name = c[1]
  local good, e = pcall(attempt, name, c[2], c[3])
  local text = good and "(no error)\n" or tostring(e) .. "\n"
  local path = "tests/golden/errors/" .. name .. ".txt"
  if os.getenv "PL_UPDATE" then
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
  end
  local want = read(path)
  verdict(not good and text == want, ("%s:\n%swant:\n%s"):format(name, text, want or "(no file)\n"))
  verdict(select(2, text:gsub("\n", "")) <= 8, name .. ": more than eight lines")
end
verdicts.done()
