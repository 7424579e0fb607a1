-- perilune check: trace a recipe's pools; says what is wrong, with the recipe's own line, or that all is
-- well. Of a packed file: every byte against its digest.
local M = { name = "check", takes = "RECIPE|DEPLOY.lua|PACKED",
  about = "check a recipe, a deployment file or a packed file; needs no GPU" }

function M.options(p)
  p:argument("recipe", "A recipe file, the name of one that comes with perilune, a deployment file, or a packed file"
    .. " (FILE.perilune), which is read as a whole.")
end

local function packed(path)
  local dev = require("pl.dev").get()
  local m = require("pl.model").open(path)
  require("pl.load").run(m.fitted, m.trace, m.pool, m.checkpoint, dev)
  local n, bytes = require("pl.pack").verify(m.checkpoint)
  print(("%s: recipe '%s', %d tensors, %s, as they were written: fine"):format(path, m.name, n,
    require("pl.plan").size(bytes)))
  return 0
end

-- A deployment file: its fields, the model's metadata, the policy.
local function deployment(path)
  local deploy = require "pl.deploy"
  local s = deploy.settings(deploy.read(path))
  local m = require("pl.model").open(s.model, s.load)
  if s.pool and not m.recipe.pools[s.pool] then
    error(require("pl.err").new(("pools.%s: recipe '%s' has no such pool"):format(s.pool, m.name)), 0)
  end
  if s.policy then require("pl.policy").load(s.policy) end
  print(("%s: recipe '%s', pool '%s', %s cache, %d requests a step, policy %s, port %d: fine"):format(path, m.name,
    m.pool.name, m.pool.kv, m.pool.batch, s.policy or "of the recipe", s.http.port))
  return 0
end

function M.run(o)
  if require("pl.deploy").is(o.recipe) then return deployment(o.recipe) end
  if require("pl.pack").is(o.recipe) then return packed(o.recipe) end
  local recipe, err = require "pl.recipe", require "pl.err"
  local r = recipe.load(o.recipe)
  local m = recipe.fit(r)
  local names = err.names(r.pools)
  table.sort(names)
  for _, name in ipairs(names) do
    local t = recipe.trace(m, name)
    print(("%s, pool '%s': %d ops, %d weights, %d layers of cache: fine"):format(r.name, name, #t.ops,
      #t.used, m.cache.layers))
  end
  return 0
end

return M
