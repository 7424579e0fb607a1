-- Checkpoints: a GGUF file or a Hugging Face directory as recipes and the loader see it. Metadata is asked
-- for under both of its names; weights go under their Hugging Face names.
local err, arg, schema, names = require "pl.err", require "pl.arg", require "pl.schema", require "pl.names"
local M = {}

-- Metadata: what a recipe's dims function is given ----------------------------------------------------------
-- The readers below are set by the kind of checkpoint: value(key) -> scalar, list, table or nil; info(name)
-- -> index, { dtype, shape, format, bytes } or nil.
local methods = {}
local mt = { __metatable = false, __index = function(_, k)
  if methods[k] then return methods[k] end
  if k == "ptr" then err.raise "this checkpoint is closed" end
  if type(k) == "string" then err.unknown("a checkpoint", k, err.names(methods)) end
end }

--- The value under the Hugging Face key or the GGUF key (without its architecture prefix), or nil. A table of
--- config.json comes as a table.
function methods:get(hf, gguf)
  if self.format == "gguf" then return gguf and self.value(self.arch .. "." .. gguf) end
  return hf and self.value(hf)
end

function methods:num(hf, gguf, default)
  local v = self:get(hf, gguf)
  if v == nil then v = default end
  local key = self.format == "gguf" and gguf and self.arch .. "." .. gguf or hf
  if v == nil then
    err.raise(("the checkpoint's metadata has no '%s'"):format(tostring(key)), { self.path })
  end
  if type(v) == "table" then -- one value a layer: a recipe that wants one value wants them equal
    for i = 2, #v do
      if v[i] ~= v[1] then
        err.raise(("metadata '%s' differs from layer to layer"):format(tostring(key)), { self.path })
      end
    end
    v = v[1]
  end
  if type(v) ~= "number" then
    err.raise(("metadata '%s' is a %s, want a number"):format(tostring(key), type(v)), { self.path })
  end
  if v ~= v or math.abs(v) == math.huge then
    err.raise(("metadata '%s' is %s, want a finite number"):format(tostring(key), tostring(v)), { self.path })
  end
  return v
end

function methods:int(hf, gguf, default)
  local v = self:num(hf, gguf, default)
  if v % 1 ~= 0 or v < 0 or v > 2 ^ 31 then
    err.raise(("metadata '%s' is %s, want a whole number"):format(tostring(self.format == "gguf" and gguf
      or hf), tostring(v)), { self.path })
  end
  return v
end

--- Does the checkpoint hold this weight?
function methods:has(name) return self.info(self:name_of(name)) ~= nil end
function methods:name_of(name) return self.format == "gguf" and names.gguf(name, self.arch) or name end

--- Sizes of a weight that has to be there.
function methods:shape(name)
  local own = self:name_of(name)
  local i = self.info(own)
  if not i then self:missing(name) end
  return i.shape
end

--- Is the head the embedding? default: what the model family does if the metadata does not say.
function methods:tied(default)
  local said = self:get("tie_word_embeddings", nil)
  if said == nil and self.format == "hf" then said = default end
  return said == true or not self:has "lm_head.weight"
end

--- Raise that a weight is missing; the near name is one that no other weight wants.
function methods:missing(name, place, wanted)
  local own, free, n = self:name_of(name), {}, 0
  for _, other in ipairs(self.all()) do
    n = n + 1
    if not (wanted and wanted[other]) then free[#free + 1] = other end
  end
  local near = err.closest(own, free)
  local msg = ("the checkpoint has no weight '%s'"):format(own)
    .. (near and (", did you mean '%s'?"):format(near) or "")
  local notes = { ("%s (%d weights)"):format(self.path, n) }
  if own ~= name then table.insert(notes, 1, "weight " .. name) end
  if place then err.raise_at(place, msg, notes) end
  err.raise(msg, notes)
end

-- Values of a small weight, as a list.
function methods:values(name)
  local t = self:tensor(name)
  local v = t:values()
  t:close()
  return v
end

-- A checkpoint file -----------------------------------------------------------------------------------------

local SAMPLE = 4096 -- bytes of a tensor that tell it from another
local function hex(v) return ("%08x%08x"):format(tonumber(v / 2 ^ 32), tonumber(v % 2 ^ 32)) end

local function open_c(path)
  local abi, tensor = require "pl.abi", require "pl.tensor"
  local C, e = abi.C, abi.err
  local out = abi.new "pl_ckpt *[1]"
  local rc = C.pl_ckpt_open(out, path, e)
  if rc == C.PL_ESTALE then require("pl.pack").stale(path, abi.string(e.msg)) end
  abi.check(rc)
  local c = setmetatable({ path = path, ptr = abi.gc(out[0], C.pl_ckpt_close) }, mt)
  rawset(c, "format", C.pl_ckpt_kind(c.ptr) == C.PL_CKPT_GGUF and "gguf" or "hf") -- of a packed file: its source's
  rawset(c, "packed", C.pl_ckpt_is_packed(c.ptr))
  rawset(c, "bytes", tonumber(C.pl_ckpt_bytes(c.ptr)))

  local info, meta = abi.new "pl_ckpt_info", abi.new "pl_meta_info"
  local int, float, text, bytes = abi.new "int64_t[1]", abi.new "double[1]", abi.new "const char *[1]",
    abi.new "int64_t[1]"
  local function element(i, kind, k)
    if kind == C.PL_META_STRING then
      abi.check(C.pl_ckpt_meta_string(c.ptr, i, k, text, bytes, e))
      return abi.text(text[0], bytes[0])
    elseif kind == C.PL_META_FLOAT then
      abi.check(C.pl_ckpt_meta_float(c.ptr, i, k, float, e))
      return float[0]
    end
    abi.check(C.pl_ckpt_meta_int(c.ptr, i, k, int, e))
    if kind == C.PL_META_BOOL then return int[0] ~= 0 end
    return tonumber(int[0])
  end
  local function at(i)
    abi.check(C.pl_ckpt_meta_at(c.ptr, i, meta, e))
    local kind = meta.type
    if not meta.is_list then return element(i, kind, 0) end
    local list = {}
    for k = 1, math.min(tonumber(meta.n), 2 ^ 20) do list[k] = element(i, kind, k - 1) end
    return list
  end
  -- Keys of config.json are flattened; a table is put together again from its "key." entries.
  local function table_of(prefix)
    local t
    for i = 0, C.pl_ckpt_meta_count(c.ptr) - 1 do
      abi.check(C.pl_ckpt_meta_at(c.ptr, i, meta, e))
      local key = abi.string(meta.key)
      if key:sub(1, #prefix) == prefix then
        t = t or {}
        t[key:sub(#prefix + 1)] = at(i)
      end
    end
    return t
  end
  local function named(name)
    if type(name) ~= "string" then err.raise(("checkpoint: %s, want a name"):format(schema.show(name))) end
    return name
  end
  rawset(c, "value", function(key)
    local i = C.pl_ckpt_meta_find(c.ptr, named(key))
    if i >= 0 then return at(i) end
    return c.format == "hf" and table_of(key .. ".") or nil
  end)
  rawset(c, "info", function(name)
    local i = C.pl_ckpt_find(c.ptr, named(name))
    if i < 0 then return nil end
    abi.check(C.pl_ckpt_info_at(c.ptr, i, info, e))
    local shape = {}
    for k = 1, math.min(info.ndim, C.PL_MAX_DIMS) do shape[k] = tonumber(info.dim[k - 1]) end
    return { index = i, shape = shape, dtype = abi.dtype_name[info.dtype], format = abi.string(info.format),
      bytes = tonumber(info.bytes), how = abi.text(info.how) }
  end)
  rawset(c, "all", function()
    local all = {}
    for i = 0, C.pl_ckpt_count(c.ptr) - 1 do
      abi.check(C.pl_ckpt_info_at(c.ptr, i, info, e))
      all[#all + 1] = abi.string(info.name)
    end
    return all
  end)
  rawset(c, "take", function(index)
    local t = tensor.handle()
    abi.check(C.pl_ckpt_tensor(c.ptr, index, t, e))
    return t
  end)
  rawset(c, "drop", function(index) C.pl_ckpt_drop(c.ptr, index) end)
  rawset(c, "text", function(name)
    local found = C.pl_ckpt_text(c.ptr, named(name), text, bytes, e)
    if found == C.PL_ENAME then return nil end
    abi.check(found)
    return abi.text(text[0], bytes[0])
  end)
  -- Whose weights these are, as a text: names, formats, sizes, and of each tensor the middle. A packed file says of
  -- which it was made; nil: an older one, which does not.
  rawset(c, "identity", function()
    if c.packed then
      local said = c.value "perilune.weights_id"
      return type(said) == "string" and said or nil
    end
    local digest = abi.new "uint64_t[2]"
    C.pl_ckpt_digest(c.ptr, SAMPLE, digest)
    return hex(digest[0]) .. hex(digest[1])
  end)
  rawset(c, "count", C.pl_ckpt_count(c.ptr))
  return c
end

--- The weight as the file has it: a view of the mapping.
function methods:tensor(name)
  local i = self.info(self:name_of(name))
  if not i then self:missing(name) end
  return self.take(i.index)
end

function methods:close()
  local abi = require "pl.abi"
  local ptr = rawget(self, "ptr")
  if ptr then abi.C.pl_ckpt_close(abi.gc(ptr, nil)) end
  rawset(self, "ptr", nil)
end

-- What it is: the architecture of a GGUF file, the class of a directory.
local function name_it(c)
  local arch
  if c.format == "gguf" then
    arch = c.value "general.architecture"
  else
    local list = c.value "architectures"
    arch = type(list) == "table" and list[1] or c.value "model_type"
  end
  rawset(c, "arch", type(arch) == "string" and arch or "?")
  return c
end

--- What a path holds that M.open takes, by a look at how it begins: "hf", "gguf", "packed", or nil.
function M.kind(path)
  local C = require("pl.abi").C
  if C.pl_host_may_wait(path) then return nil end
  local f = io.open(path, "rb")
  if not f then return nil end
  local head, _, code = f:read(8)
  f:close()
  if code == 21 or path:find "%.safetensors$" then return "hf" end -- EISDIR
  return head == "perilune" and "packed" or (head or ""):sub(1, 4) == "GGUF" and "gguf" or nil
end

--- Is it a file that M.open takes, by its name or by how it begins?
function M.is_file(path)
  local kind = M.kind(path)
  return path:find "%.gguf$" ~= nil or path:find "%.perilune$" ~= nil or kind == "gguf" or kind == "packed"
    or path:find "%.safetensors$" ~= nil
end

--- Raises where a path cannot be opened; where nothing is there, with what fetches a model.
function M.need(path)
  if require("pl.abi").C.pl_host_may_wait(path) then return end
  local f, why = io.open(path, "rb")
  if f then f:close()
  elseif not why:find "No such file" then
    err.raise(why)
  else
    local name = path:find "^[%w][%w%-_.]*/[%w][%w%-_.]*$" or require("pl.pull").demo[path]
    err.raise(why, { ("want a GGUF file, a packed one, or a Hugging Face directory; `perilune pull %s` fetches one")
      :format(name and path or "NAME") })
  end
end

function M.open(path)
  M.need(path)
  local c = open_c(path)
  local missing = {}
  if c.format == "hf" and not c.text "config.json" then missing[1] = "config.json" end
  if c.count == 0 then missing[#missing + 1] = c.format == "hf" and "*.safetensors" or "weights" end
  if #missing > 0 then
    c:close()
    err.raise(("%s is no model: it has no %s"):format(path, table.concat(missing, " and no ")),
      { "want a GGUF file, a packed one, or a directory with config.json and *.safetensors" })
  end
  if c.packed then require("pl.pack").check_source(c) end
  return name_it(c)
end

-- Questions that a recipe may ask, and their arguments.
local number = schema.number(-2 ^ 53, 2 ^ 53)
local questions = { get = { "hf?", "string", "gguf?", "string" },
  num = { "hf?", "string", "gguf?", "string", "default?", number },
  int = { "hf?", "string", "gguf?", "string", "default?", number },
  has = { "name", "string" }, shape = { "name", "string" }, values = { "name", "string" },
  tied = { "default?", "boolean" } }
local seen_by_recipes = setmetatable({}, { __mode = "k" })
--- Does x answer these questions?
function M.is(x) return type(x) == "table" and (seen_by_recipes[x] or debug.getmetatable(x) == mt) or false end
arg.methods("meta", methods, function(x)
  if not M.is(x) then
    return ("called on %s, want a checkpoint (with a colon)"):format(schema.show(x))
  end
end, questions)

--- A checkpoint as a recipe's dims function sees it: it answers questions, and cannot be changed or closed.
function M.for_recipe(c)
  local shown = { format = c.format, arch = c.arch, path = c.path }
  for name in pairs(questions) do
    shown[name] = function(_, ...) return methods[name](c, ...) end
  end
  local shows = setmetatable({}, { __metatable = false,
    __newindex = function() err.raise "a checkpoint cannot be changed" end,
    __index = function(_, k)
      if shown[k] ~= nil then return shown[k] end
      err.unknown("a checkpoint", tostring(k), err.names(shown))
    end })
  seen_by_recipes[shows] = true
  return shows
end

--- A checkpoint held in memory, without values: { format, arch, config = { key = value }, tensors = { name = {
--- dtype, shape } } }.
function M.in_memory(t)
  local c = setmetatable({ path = "in memory", format = t.format, arch = t.arch or "?", packed = false }, mt)
  rawset(c, "value", function(key) return (t.config or {})[key] end)
  rawset(c, "info", function(name) return t.tensors[name] end)
  rawset(c, "all", function()
    local all = err.names(t.tensors)
    table.sort(all)
    return all
  end)
  rawset(c, "count", #err.names(t.tensors))
  return c
end

arg.functions("checkpoint", M, { open = { "path", "string" }, in_memory = { "t",
  schema.having { format = { gguf = true, hf = true }, tensors = "table" } } })

return M
