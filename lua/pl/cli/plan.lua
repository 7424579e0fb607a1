-- perilune plan: what a model will need, from its metadata or from a recipe alone.
local common = require "pl.cli.common"
local M = { name = "plan", takes = "RECIPE|MODEL|DEPLOY.lua",
  about = "bytes of weights, cache and activations; loads nothing" }

function M.options(p)
  p:argument("model", "A recipe (FILE.lua, or the name of one that comes with perilune), a GGUF file, a"
    .. " Hugging Face directory, a packed file, or a deployment file.")
  p:option("--recipe", "The recipe to use for a model."):argname "FILE"
  p:option("--weights", "With a recipe: the model that it is for."):argname "PATH"
  common.act(p, true)
  common.tiers(p)
  p:option("--batch", "Sequences at a time."):convert(common.whole(1)):argname "N"
  p:option("--context", "Tokens of cache per sequence."):convert(common.whole(1)):argname "N"
  p:option("--cache-bytes", "Bytes of the whole cache, in place of --batch times --context tokens.")
    :convert(common.whole(1, 2 ^ 53)):argname "N"
  p:option("--tokens", "Tokens of one step."):convert(common.whole(1)):argname "N"
  common.json(p)
end

function M.run(o)
  local recipe, plan, json, err = require "pl.recipe", require "pl.plan", require "pl.json", require "pl.err"
  local deploy = require "pl.deploy"
  local set = deploy.is(o.model) and deploy.settings(deploy.read(o.model))
  local over = { act = o.act, kv = o.kv, kv_scale = o.kv_scale, kv_scales = o.kv_scales,
    cache_bytes = o.cache_bytes,
    batch = o.batch, tokens = o.tokens, context = o.context, host_cache_bytes = o.host_cache_bytes,
    disk_cache = o.disk_cache, disk_cache_bytes = o.disk_cache_bytes }
  local all = {}
  if set then
    for k, v in pairs(set.load) do if over[k] == nil then over[k] = v end end
    over.weights, o.context = o.weights or over.weights, o.context or set.context
    o.recipe, o.weights, o.model = o.recipe or set.load.recipe, over.weights, set.model
    over.context = o.context
  end
  if not set and (o.model:find "%.lua$" or require("pl.recipes.text")[o.model]) and not o.weights then
    common.only(o, false, "the model is a recipe itself", { "recipe" })
    local r = recipe.load(o.model)
    local m = recipe.fit(r)
    local names = err.names(r.pools)
    table.sort(names)
    for i, name in ipairs(names) do
      local t, pool = recipe.trace(m, name, over)
      if pool.kv_scales then require("pl.cache").scales_of(m.cache, pool, false) end
      all[i] = plan.figures(m, t, pool, nil, o.context)
    end
  else
    over.recipe, over.weights = o.recipe, o.weights
    local m = require("pl.model").open(o.model, over)
    m.context = o.context
    if m.pool.kv_scales then m:check_scales() end
    all[1] = m:plan()
  end
  if o.json then
    print(json.encode(#all == 1 and all[1] or json.list(all)))
  else
    for _, p in ipairs(all) do print(plan.text(p)) end
  end
  return 0
end

return M
