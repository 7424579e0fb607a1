-- Packed files: a model as the device wants it, to be mapped at the next start. pl.pack writes one; what is recorded in
-- it (the options) tells later whether it still fits, and the command that writes it again.
local err, json, load = require "pl.err", require "pl.json", require "pl.load"
local arg, schema = require "pl.arg", require "pl.schema"
local M = {}

M.suffix = ".perilune"
local HEADER, MOST = 72, 2 ^ 16 -- core/packed.h: where the options are, and how long they can be

function M.is(path) return path:sub(-#M.suffix) == M.suffix end

--- Where a model's packed file goes unless it is said: beside it, under its name.
function M.default(path)
  local name = path:gsub("/+$", ""):gsub("%.gguf$", ""):gsub("%.safetensors$", "")
  return name .. M.suffix
end

local function absolute(path)
  local here = os.getenv "PWD"
  return (path:sub(1, 1) == "/" or not here) and path or here .. "/" .. path
end

-- What the source's files look like; nil: they are not there.
local function stamp_of(path)
  local abi = require "pl.abi"
  local s = abi.new "uint64_t[2]"
  local rc = abi.C.pl_pack_stamp(path, s, abi.err)
  if rc == abi.C.PL_ENAME then return nil end
  abi.check(rc)
  local out = {}
  for i = 0, 1 do out[i + 1] = tostring(s[i]):match "%d+" end
  return table.concat(out, "-")
end

local function quoted(s)
  if s:find "^[%w@%%+=:,./_-]+$" then return s end
  return "'" .. s:gsub("'", "'\\''") .. "'"
end

-- The options of a file, of whatever version; {} if it has none that can be read.
local function options_of(path)
  local f = io.open(path, "rb")
  local head = f and f:read(HEADER) or ""
  local n = 0
  for i = 4, 1, -1 do n = n * 256 + (head:byte(12 + i) or 0) end
  local text = f and n <= MOST and f:read(n) or ""
  if f then f:close() end
  local ok, o = pcall(json.decode, text)
  return ok and type(o) == "table" and o or {}
end

--- The command that writes a packed file again; recipe: another one than then.
function M.command(path, recipe)
  local o = options_of(path)
  if type(o.weights) == "string" then o.source, recipe, o.recipe = recipe or o.source, nil, nil end -- a recipe itself
  o.recipe = recipe or o.recipe
  local parts = { "perilune", "pack", type(o.source) == "string" and quoted(o.source) or "MODEL", "-o", quoted(path) }
  for _, k in ipairs { "weights", "recipe", "act" } do
    if type(o[k]) == "string" then
      parts[#parts + 1] = "--" .. k
      parts[#parts + 1] = quoted(o[k])
    end
  end
  return err.printable(table.concat(parts, " "))
end

--- Raise that a packed file cannot be used any more.
function M.stale(path, why, recipe)
  local o = options_of(path)
  local made = type(o.perilune) == "string" and ("packed by perilune %s on path %s, act %s"):format(o.perilune,
    tostring(o.path), tostring(o.acts))
  err.raise(("%s is stale: %s"):format(path, why), { "write it again:  " .. M.command(path, recipe),
    made and err.printable(made) or nil }, "ESTALE")
end

--- Is what the file was made of as it was? A source that is not there any more is not missed.
function M.check_source(c)
  local file, was = c.value "perilune.file", c.value "perilune.stamp"
  if type(file) ~= "string" or type(was) ~= "string" then return end
  local ok, now = pcall(stamp_of, file)
  if ok and now and now ~= was then M.stale(c.path, file .. " has changed since") end
end

--- The recipe that a packed file was made with, if it was named and is one of perilune's own. One of the user's is not
--- looked for, let alone run, because a model file names it: the user names it again.
function M.recipe_of(c)
  local recipe = c.value(type(c.value "perilune.weights") == "string" and "perilune.source" or "perilune.recipe")
  if type(recipe) ~= "string" then return nil end
  if require("pl.recipes.text")[recipe] then return recipe end
  err.raise(("%s was packed with the recipe %s: want it, or another"):format(c.path, recipe),
    { "with  --recipe " .. err.printable(quoted(recipe)) })
end

local fields = { out = "string", progress = "function", recipe = "string", weights = "string", path = "string",
  act = { f32 = true, bf16 = true, int8 = true, int15 = true }, threads = schema.whole(0) }

--- pl.pack(path, { out =, recipe =, weights =, act =, path =, threads = }): writes a model as a packed file (path and
--- options as in pl.load) and returns its path and bytes. progress(done, total), if given. The file is there when it is
--- whole, and takes part in pl.load and the verbs like a GGUF file.
function M.write(path, o)
  local abi, dev = require "pl.abi", require "pl.dev"
  local C, e, check = abi.C, abi.err, abi.check
  o = schema.check("pack", fields, o or {})
  local out, progress = o.out or M.default(path), o.progress
  if not M.is(out) then err.raise(("%s: want a name that ends in %s"):format(out, M.suffix)) end
  local given = { recipe = o.recipe, weights = o.weights, path = o.path, act = o.act, threads = o.threads }
  local m = require("pl.model").open(path, given)
  local device = (o.threads or o.path) and dev.set { threads = o.threads, path = o.path } or dev.get()
  local weights, file = o.weights and absolute(o.weights), absolute(o.weights or path)
  local own = require("pl.recipes.text")[path] and path -- one of perilune's own, as MODEL
  local options = json.encode { perilune = abi.version(), source = own or absolute(path), weights = weights,
    recipe = o.recipe, act = o.act, file = file, stamp = stamp_of(file), -- file: whose change makes it stale
    weights_id = m.checkpoint.identity(), path = device:path(), acts = m.pool.act, name = m.name }
  local made = abi.new "pl_packer *[1]"
  check(C.pl_packer_new(made, out, m.checkpoint.ptr, options, #options, e))
  local packer = abi.gc(made[0], C.pl_packer_free)
  C.pl_host_signals(C.PL_SIGTERM) -- heeded from now on: an unfinished file of the model's size does not stay
  C.pl_host_signals(C.PL_SIGHUP)
  local ok, why = pcall(function()
    local seen, names = {}, {}
    for k, w in ipairs(m.trace.used) do
      load.one(w, m.pool, m.checkpoint, device, m.infos, function(t, name)
        check(C.pl_packer_add(packer, device.ptr, name, t, load.how(w, m.pool, m.checkpoint), e))
        seen[name] = true
      end)
      if progress then progress(k, #m.trace.used) end
      if C.pl_host_signals(C.PL_SIGTERM) + C.pl_host_signals(C.PL_SIGHUP) > 0 then
        err.raise("pack: ended by a signal", nil, "ECANCEL")
      end
    end
    -- small tensors that take part in nothing, but that a recipe may ask for
    for _, name in ipairs(m.checkpoint.all()) do
      local i = m.checkpoint.info(name)
      if not seen[name] and i.dtype and i.bytes > 0 and i.bytes <= load.SMALL then names[#names + 1] = name end
    end
    for _, name in ipairs(names) do
      local t = m.checkpoint.take(m.checkpoint.info(name).index)
      check(C.pl_packer_add(packer, device.ptr, name, t, "", e))
      t:close()
    end
    check(C.pl_packer_end(packer, e))
  end)
  C.pl_packer_free(abi.gc(packer, nil))
  m.checkpoint:close()
  if not ok then error(why, 0) end
  local c = require("pl.checkpoint").open(out) -- what was written can be read
  local bytes = c.bytes
  c:close()
  return out, bytes
end

--- Compare every tensor of an open packed file with its digest, and what lies between them with zeros; raises at the
--- first that is damaged. Returns the tensors' number and bytes.
function M.verify(c)
  local abi, bytes = require "pl.abi", 0
  for i = -1, c.count - 1 do
    abi.check(abi.C.pl_ckpt_verify(c.ptr, i, abi.err), { c.path })
    if abi.C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
  end
  for _, name in ipairs(c.all()) do bytes = bytes + c.info(name).bytes end
  return c.count, bytes
end

arg.functions("pack", M, { write = { "path", "string", "o?", "table" } })

return M
