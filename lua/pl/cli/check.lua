-- perilune check: trace a recipe's pools; says what is wrong, with the recipe's own line, or that all is
-- well.
local M = { name = "check", takes = "RECIPE", about = "check a recipe; needs neither weights nor a GPU" }

function M.options(p) p:argument("recipe", "A recipe file, or the name of one that comes with perilune.") end

function M.run(o)
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
