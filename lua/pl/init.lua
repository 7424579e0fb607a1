-- require "pl": what recipes and the REPL use. Parts that need the C side are loaded when first used, so that
-- recipes can be read and traced without it.
local err, arg, schema = require "pl.err", require "pl.arg", require "pl.schema"
local op, trace, weights = require "pl.op", require "pl.trace", require "pl.weights"
local policy = require "pl.policy"
local pl = {}
package.loaded["pl"] = pl -- pl.nn asks for it while it is loaded from here

--- Dimensions: a table that complains about unknown names.
local function dims(t)
  local out = {}
  for k, v in next, t do
    if type(k) ~= "string" then err.raise(("dims: entry [%s] has no name"):format(tostring(k))) end
    out[k] = v
  end
  return schema.strict("dims", out)
end

-- What cannot be changed, and complains about names that it does not have.
local function fixed(what, t)
  return setmetatable({}, { __metatable = false, __newindex = function() err.raise(what .. " cannot be changed") end,
    __index = function(_, k) return t[k] or err.unknown(what, tostring(k), err.names(t)) end })
end

local policies, ops = {}, {}
for _, name in ipairs(policy.names) do policies[name] = policy[name] end
for _, o in ipairs(op.all()) do ops[o.name] = op[o.name] end

-- The part that recipes see.
local recipe = {
  dims = arg.check("dims", "pl.dims", { "t", "table" }, nil, dims), weight = weights.declare,
  each_layer = trace.each_layer, const = trace.const, sum_ranks = trace.sum_ranks,
  policy = fixed("pl.policy", policies),
}
pl.for_recipes = recipe
for k, v in pairs(recipe) do pl[k] = v end
pl.op = op

recipe.op = fixed("pl.op", ops)
recipe.pool = require("pl.pool").new
pl.pool = recipe.pool
for _, name in ipairs { "recipe", "integrity" } do
  local function call(t) return require("pl.recipe")[name == "recipe" and "new" or name](t) end
  recipe[name], pl[name] = call, call
end

-- Everything below needs the C side.
local later = {
  load = { "pl.model", "load" }, pack = { "pl.pack", "write" },
  tensor = { "pl.tensor", "new" }, zeros = { "pl.tensor", "zeros" },
    scope = { "pl.tensor", "scope" },
  kv = { "pl.eager", "kv" }, device = { "pl.dev", "set" }, version = { "pl.abi", "version" },
  talk = { "pl.talk", "new" },
}
setmetatable(pl, { __index = function(_, k)
  if k == "nn" then
    pl.nn = require "pl.nn"
    return pl.nn
  end
  local where = later[k]
  if not where then
    local names = err.names(pl)
    for n in pairs(later) do names[#names + 1] = n end
    err.unknown("pl", k, names)
  end
  pl[k] = require(where[1])[where[2]]
  return pl[k]
end })

return pl
