-- perilune check: trace a recipe's pools; says what is wrong, with the recipe's own line, or that all is
-- well. Of a packed file: every byte against its digest.
local M = { name = "check", takes = "RECIPE|DEPLOY.lua|PACKED",
  about = "check a recipe, a deployment file or a packed file; needs no GPU" }

function M.options(p)
  p:argument("recipe", "A recipe file, the name of one that comes with perilune, a deployment file, or a packed file"
    .. " (FILE.perilune), which is read as a whole.")
  p:option("--recipe", "With a packed file that was made with a recipe of your own: that recipe."):target "own"
    :argname "FILE"
end

local function packed(path, recipe)
  local dev = require("pl.dev").get()
  local m = require("pl.model").open(path, { recipe = recipe })
  require("pl.load").run(m.fitted, m.trace, m.pool, m.checkpoint, dev)
  local n, bytes = require("pl.pack").verify(m.checkpoint)
  m:close()
  print(("%s: recipe '%s', %d tensors, %s, as they were written: fine"):format(path, m.name, n,
    require("pl.plan").size(bytes)))
  return 0
end

local function want_directory(dir, what)
  local f = dir and io.open(dir .. "/.")
  if f then f:close()
  elseif dir then error(require("pl.err").new(("%s: %s: No such file or directory"):format(what, dir)), 0) end
end
local function parent(path) return type(path) == "string" and (path:match "^(.*)/" or ".") or nil end

-- A deployment file: its fields, the model's metadata, the sizes that it states, and the files that it names. What the
-- machine has, as memory and code paths, is not asked: it may be another than that which serves.
local function deployment(path)
  local deploy, http = require "pl.deploy", require "pl.http"
  local s = deploy.settings(deploy.read(path))
  local m = require("pl.model").open(s.model, s.load)
  m:check_scales()
  m.context = require("pl.cache").context(m.fitted, m.pool, s.context)
  m:plan()
  want_directory(s.load.disk_cache, "disk_cache")
  want_directory(s.access_log ~= "-" and parent(s.access_log), "access_log")
  want_directory(parent(s.socket), "socket")
  http.keys_of(s.keys)
  if s.tls then http.tls_of(s.tls) end
  if s.chat_template then require("pl.chat").open(s.chat_template) end
  if s.policy then require("pl.policy").load(s.policy) end
  print(("%s: recipe '%s', pool '%s', %s cache, %d requests a step, policy %s, port %d: fine"):format(path, m.name,
    m.pool.name, m.pool.kv, m.pool.batch, s.policy or "of the recipe", s.http.port))
  m.checkpoint:close()
  return 0
end

function M.run(o)
  local is_packed = require("pl.pack").is(o.recipe)
  require("pl.cli.common").only(o, is_packed, "wants a packed file", { { "--recipe", "own" } })
  if require("pl.deploy").is(o.recipe) then return deployment(o.recipe) end
  if is_packed then return packed(o.recipe, o.own) end
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
