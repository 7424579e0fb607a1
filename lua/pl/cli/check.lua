-- perilune check: trace a recipe's pools; says what is wrong, with the recipe's own line, or that all is well. Of a
-- model: that a recipe serves it, with every weight, and that these are numbers. Of a packed file: every byte against
-- its digest.
local common, err = require "pl.cli.common", require "pl.err"
local M = { name = "check", takes = "RECIPE|DEPLOY.lua|MODEL",
  about = "check a recipe, a deployment file, a model or a packed file; needs no GPU" }

function M.options(p)
  p:argument("file", "A recipe (FILE.lua, or the name of one that comes with perilune), a deployment file (FILE.lua), a"
    .. " GGUF file, a Hugging Face directory, or a packed file (FILE.perilune); models are read as a whole.")
  p:option("--recipe", "With a model: the recipe to use. Default: by the metadata."):argname "FILE"
end

-- A model: a recipe that fits it, all weights, each read once.
local function model(path, recipe)
  local abi, m = require "pl.abi", require("pl.model").open(path, { recipe = recipe })
  local C, c, e = abi.C, m.checkpoint, abi.err
  for _, w in ipairs(m.trace.used) do
    if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
    local index = m.infos[w.weight].index
    local t = c.take(index)
    local rc = C.pl_ckpt_check_values(t, e)
    t:close()
    if rc < 0 then error(err.new(("%s: weight %s: %s"):format(path, c:name_of(w.weight), abi.string(e.msg))), 0) end
    c.drop(index)
  end
  print(("%s: recipe '%s', %d weights, %s: fine"):format(path, m.name, #m.trace.used, require("pl.plan").size(c.bytes)))
  c:close()
  return 0
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
  if dir and not require("pl.file").is_directory(dir) then
    error(err.new(("%s: %s: No such file or directory"):format(what, dir)), 0)
  end
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

local function recipe_file(path)
  local recipe = require "pl.recipe"
  local r = recipe.load(path)
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

function M.run(o)
  local path, kind = o.file, require("pl.checkpoint").kind(o.file)
  common.only(o, kind, "wants a model", { "recipe" })
  if kind == "packed" then return packed(path, o.recipe) end
  if kind then return model(path, o.recipe) end
  if require("pl.deploy").is(path) then return deployment(path) end
  if not path:find "%.lua$" and path ~= "-" and not require("pl.abi").C.pl_host_may_wait(path) then
    local f = io.open(path)
    if f then
      f:close()
      error(err.new(path .. ": neither a model nor Lua", { "want a recipe or a deployment file (FILE.lua), a GGUF"
        .. " file, a Hugging Face directory, or a packed file" }), 0)
    end
  end
  return recipe_file(path)
end

return M
