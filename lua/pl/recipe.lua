-- Recipes: reading one in a sandbox, checking what it returns, and fitting it to dimensions.
local err, schema, sandbox = require "pl.err", require "pl.schema", require "pl.sandbox"
local weights, trace, pool = require "pl.weights", require "pl.trace", require "pl.pool"
local arg, file = require "pl.arg", require "pl.file"
local M = {}

-- One name, or a list of them.
local function one_or_more(v)
  if type(v) == "string" then return nil end
  return schema.wrong(v, schema.list("string", 1))
end

local fields = { "name", "dims", "weights", "forward",
  name = "string",
  serves = "table",              -- { gguf = architecture, hf = class name }, or lists of them
  dims = "table|function",       -- pl.dims { ... }, or function(meta): dims from the checkpoint's metadata
  example = "table",             -- dims for `check` and `plan` when no checkpoint is at hand
  weights = "function",          -- function(d): tree of pl.weight
  forward = "function",          -- function(ids, w, kv, d): logits of the wanted rows[, hidden states of all rows]
  pooling = { last = true, mean = true }, -- what an embedding is made of: the last token (default) or all
  cache = "table|function",      -- { layers, heads, key_dim, value_dim, page }, or function(d)
  pools = "table",               -- name = pl.pool { ... }
  integrity = "table",
  schedule = "function",         -- function(s): who goes next
  unused = schema.list("string", 0), -- patterns of checkpoint tensors that the model leaves aside
}
local whole = schema.whole
local cache_fields = { "layers", "heads", "key_dim", "value_dim",
  layers = whole(1), heads = whole(1), key_dim = whole(1), value_dim = whole(1),
  page = function(v)
    return schema.whole(16, 1024)(v) or v % 16 ~= 0 and schema.show(v) .. ", want a multiple of 16" or nil
  end }

local made = setmetatable({}, { __mode = "k" }) -- what pl.recipe returned

--- pl.recipe { ... }: checks the parts and names them. A recipe file returns this.
function M.new(t)
  local r = schema.check("recipe", fields, t)
  r.pools = r.pools or { all = pool.new {} }
  if next(r.pools) == nil then err.raise "recipe.pools: none, want at least one" end
  for name, p in next, r.pools do
    if type(name) ~= "string" then err.raise(("recipe.pools: %s is no name"):format(schema.show(name))) end
    if not pool.is(p) then
      err.raise(("recipe.pools.%s: %s, want pl.pool { ... }"):format(name, schema.show(p)))
    end
  end
  schema.check("recipe.serves", { gguf = one_or_more, hf = one_or_more }, r.serves or {})
  made[r] = true
  return r
end

local integrity_fields = { check = { off = true, pages = true, ["pages+digest"] = true },
  on_mismatch = { abort_request = true, stop_engine = true }, scrub = schema.number(0, 0.99) }

--- pl.integrity { check = "off" | "pages" | "pages+digest", on_mismatch = "abort_request" | "stop_engine",
--- scrub = share of the time }: before every step the tags of all pages that it reads are compared (pages, the
--- default); full pages have digests too, and the scrub compares them (pages+digest).
function M.integrity(t) return schema.check("integrity", integrity_fields, t) end

-- The entries of a table, without what a metatable would make of it.
local function plain(t)
  local o = {}
  for k, v in next, t do o[k] = v end
  return o
end

--- Run a recipe's text under the name that errors show.
function M.load_text(text, name, limits)
  if text:find "%z" then error(err.new(name .. ": not a Lua text, want a recipe"), 0) end
  local pl = require "pl"
  local box = sandbox.new({ pl = pl.for_recipes, ["pl.nn"] = require "pl.nn" }, limits)
  local r = box:call(box:load(text, name))
  if type(r) ~= "table" or not made[r] then
    error(err.new("a recipe returns pl.recipe { ... }, not " .. (r == nil and "nothing" or "a " .. type(r)),
      nil, name, 1), 0)
  end
  -- a copy: the recipe keeps what it returned, and could write in it later
  r = box:call(schema.check, "recipe", fields, r)
  r.pools, r.serves, r.unused = plain(r.pools), plain(r.serves or {}), plain(r.unused or {})
  r.box, r.file, r.text = box, name, text
  return r
end

local function embedded() return require "pl.recipes.text" end

--- A recipe file, or one that comes with perilune by its name ("llama").
function M.load(path)
  local text, why = file.read(path, file.recipe)
  if text then return M.load_text(text, path) end
  if not why:find "No such file" then error(err.new(why), 0) end
  local builtin = embedded()[path]
  if builtin then return M.load_text(builtin, "recipes/" .. path .. ".lua") end
  local names = {}
  for n in pairs(embedded()) do names[#names + 1] = n end
  table.sort(names)
  local near = err.closest(path, names)
  error(err.new(("no recipe '%s'"):format(path) .. (near and (", did you mean '%s'?"):format(near) or ""),
    { "neither a file nor one of: " .. table.concat(names, " ") }), 0)
end

local function serves(r, format, arch)
  local s = r.serves and r.serves[format]
  if type(s) == "string" then return s == arch end
  for _, a in ipairs(s or {}) do if a == arch then return true end end
  return false
end

--- The recipe that serves a checkpoint, by its metadata.
function M.find(meta)
  local names = {}
  for n in pairs(embedded()) do names[#names + 1] = n end
  table.sort(names)
  for _, n in ipairs(names) do
    local r = M.load_text(embedded()[n], "recipes/" .. n .. ".lua")
    if serves(r, meta.format, meta.arch) then return r end
  end
  local what = meta.arch ~= "?" and ("no recipe serves '%s' (%s)"):format(tostring(meta.arch), meta.format)
    or ("%s does not say what it is: no %s"):format(meta.path, meta.format == "gguf" and "general.architecture"
      or "config.json with 'architectures'")
  error(err.new(what,
    { "recipes: " .. table.concat(names, " "), "another one can be named with --recipe" }), 0)
end

--- Fit a recipe to dims: meta is a checkpoint's metadata, or nil (then the dims are the pinned or example
--- ones). Returns { recipe, dims, weights, weight_list, cache, forward, box }.
function M.fit(r, meta, dims)
  local box = r.box
  local d = dims or r.dims
  if type(d) == "function" then
    if meta then d = box:call(d, require("pl.checkpoint").for_recipe(meta)) else d = r.example end
    if not d then
      error(err.new(("recipe '%s' takes its dims from a checkpoint, and has no example"):format(r.name), nil,
        r.file, 1), 0)
    end
  end
  if type(d) ~= "table" then
    err.raise_at(type(r.dims) == "function" and r.dims or { file = r.file },
      ("dims: %s, want pl.dims { ... }"):format(schema.show(d)))
  end
  local context = rawget(d, "context")
  local bad = context ~= nil and schema.wrong(context, whole(1))
  if bad then err.raise_at({ file = r.file }, "dims.context: " .. bad) end
  local layers = meta and rawget(meta, "ptr") and rawget(d, "layers")
  if type(layers) == "number" and layers > meta.count then -- a number that only costs time to follow
    err.raise_at(type(r.dims) == "function" and r.dims or { file = r.file },
      ("dims: %g layers, but the checkpoint has %d weights in all"):format(layers, meta.count))
  end
  -- what the recipe's functions return is looked at in the box too: it can hold functions of the recipe's own
  local tree, list = box:call(function()
    local tree = r.weights(d)
    if type(tree) ~= "table" then
      err.raise_at(r.weights, ("weights returned %s, want a table"):format(schema.show(tree)))
    end
    return weights.collect(tree)
  end)
  if meta and rawget(meta, "ptr") and meta.format == "hf" then weights.add_orders(list, meta) end
  local cache = box:call(function()
    local c = r.cache or require("pl.nn").gqa_cache
    if type(c) == "function" then c = c(d) end
    return schema.check("cache", cache_fields, c)
  end)
  cache.page = cache.page or 64
  return { recipe = r, name = r.name, dims = d, weights = tree, weight_list = list, cache = cache,
    max_context = context, forward = r.forward, box = box }
end

--- Trace a fitted model for one of its pools; over: pool fields from the command line.
function M.trace(model, pool_name, over)
  local pools = model.recipe.pools
  if not pool_name then
    local names = err.names(pools)
    table.sort(names)
    pool_name = names[1]
  end
  if not pools[pool_name] then err.unknown("recipe.pools", pool_name, err.names(pools)) end
  local p = pool.with(pools[pool_name], pool_name, over)
  return trace.run(model, p), p
end

arg.functions("recipe", M, { load = { "path", "string" }, load_text = { "text", "string", "name", "string",
  "limits?", "table" } })

return M
