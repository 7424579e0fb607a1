-- Deployment files: what is served, in which sizes, to whom, as data. The file is a Lua text that returns a table; it
-- sees gb, mb, k, env(NAME) and nothing else, and runs under a small budget. A wrong field is an error with its line.
local err, file, schema, sandbox = require "pl.err", require "pl.file", require "pl.schema", require "pl.sandbox"
local M = {}

local LIMITS = { instructions = 1e6, seconds = 1, megabytes = 16 }
local whole, number = schema.whole, schema.number
local bytes = whole(1, 2 ^ 53)

local function one_of(...)
  local set = {}
  for _, v in ipairs { ... } do set[v] = true end
  return set
end

-- Fields ---------------------------------------------------------------------------------------------------

local pool = {}
for name, want in pairs(require("pl.pool").fields) do
  if name ~= "weights" and name ~= "host_cache_bytes" and not name:find "^disk_cache" then pool[name] = want end
end

local function some_text(v)
  if v == "" then return "an empty text" end
  return schema.wrong(v, "string")
end
local function log_to(v) return type(v) ~= "boolean" and some_text(v) or nil end

--- Is this text an address in numbers? Names are not looked up.
function M.is_address(s) return (s:find "^[%d.]+$" or s:find "^[%x:.]*:[%x:.]*$") ~= nil end
M.ADDRESS = "want a numeric one: 127.0.0.1, 0.0.0.0, ::1"
local function numeric_address(v)
  if type(v) ~= "string" or not M.is_address(v) then return schema.show(v) .. ", " .. M.ADDRESS end
end

-- A table here is a table in the file; entries: any names, each with such a table.
local fields = {
  model = some_text, recipe = some_text, weights = some_text, name = some_text, chat_template = some_text,
  path = one_of("auto", "portable", "avx2", "avx512", "amx", "soft-amx"),
  pools = { entries = pool },
  tiers = { fields = { host_cache_bytes = bytes, disk_cache = some_text, disk_cache_bytes = bytes } },
  integrity = { fields = { check = one_of("off", "pages", "pages+digest"),
    on_mismatch = one_of("abort_request", "stop_engine"), scrub = number(0, 0.99) } },
  policy = some_text, keys = some_text,
  tenants = { entries = { share = number(1e-3, 1e6) } },
  address = numeric_address, port = whole(0, 65535), socket = some_text,
  tls = { fields = { cert = some_text, key = some_text } },
  limits = { fields = { body_bytes = whole(1024, 2 ^ 30), connections = whole(1, 1e6), headers_s = number(0.1, 1e6),
    body_s = number(0.1, 1e6), idle_s = number(0.1, 1e6), send_s = number(0.1, 1e6), stall_s = number(0.1, 1e6),
    drain_s = number(0, 1e6) } },
  access_log = log_to, vllm_names = "boolean",
}

-- Places ---------------------------------------------------------------------------------------------------

-- The pieces of a Lua text as far as tables need them: f(kind, text, line) for names, texts, and each other character.
local function pieces(text, f)
  local at, line = 1, 1
  local function pass(stop)
    local _, n = text:sub(at, stop):gsub("\n", "")
    line, at = line + n, stop + 1
  end
  while at <= #text do
    local equals = text:match("^%-%-%[(=*)%[", at) or text:match("^%[(=*)%[", at)
    local c = text:sub(at, at)
    if equals then
      local _, stop = text:find("]" .. equals .. "]", at, true)
      pass(stop or #text)
    elseif text:find("^%-%-", at) then
      pass((text:find("\n", at, true) or #text + 1) - 1)
    elseif c == '"' or c == "'" then
      local stop = at + 1
      while stop <= #text and text:sub(stop, stop) ~= c do
        stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1)
      end
      f("text", text:sub(at + 1, stop - 1), line)
      pass(stop)
    elseif c:find "[%a_]" then
      local name = text:match("^[%w_]+", at)
      f("name", name, line)
      at = at + #name
    else
      if not c:find "%s" then f(c, c, line) end
      pass(at)
    end
  end
end

-- The line of each field of the table that is returned: ["limits.body_bytes"] = 12; [""]: the table's own.
local function lines_of(text)
  local out, path, last, key = { [""] = 1 }, nil, nil, nil
  pieces(text, function(kind, s, line)
    if not path then
      if kind == "name" and s == "return" then
        path, out[""] = {}, line
      end
      return
    end
    if kind == "=" then
      key = last
      if key and #path > 0 then
        local full = table.concat(path, ".", 2) .. (#path > 1 and "." or "") .. key.s
        out[full] = out[full] or key.line
      end
    elseif kind == "{" then
      path[#path + 1] = key and key.s or "?"
      key = nil
    elseif kind == "}" then
      path[#path] = nil
      key = nil
    elseif kind == "," or kind == ";" then
      key = nil
    end
    if kind == "name" or kind == "text" then last = { s = s, line = line } end
  end)
  return out
end

local function complain(d, path, msg, notes)
  local line = d.lines[path]
  while not line do
    path = path:match "^(.*)%.[^.]*$" or ""
    line = d.lines[path]
  end
  error(err.new(msg, notes, d.file, line), 0)
end

-- Reading --------------------------------------------------------------------------------------------------

local function environment(name)
  local env = { k = 1024, mb = 2 ^ 20, gb = 2 ^ 30 }
  function env.env(variable)
    local v = type(variable) == "string" and os.getenv(variable)
    if not v then err.raise(("env: no variable %s"):format(schema.show(variable))) end
    return v
  end
  return setmetatable({}, { __metatable = false,
    __index = function(_, key)
      if env[key] == nil then
        err.raise(("%s has no '%s'"):format(name, tostring(key)), { "a deployment file is data: it has gb mb k env" })
      end
      return env[key]
    end,
    __newindex = function(_, key)
      err.raise(("a deployment file sets no globals: make '%s' local"):format(tostring(key)))
    end })
end

local check

local function check_value(d, path, v, want)
  if type(want) ~= "table" or not (want.fields or want.entries) then
    local bad, part = schema.wrong(v, want)
    if bad then complain(d, path, ("%s%s: %s"):format(path, part or "", bad)) end
    return v
  end
  if type(v) ~= "table" then complain(d, path, ("%s: %s, want a table"):format(path, schema.show(v))) end
  if want.fields then return check(d, path, v, want.fields) end
  local out = {}
  for name, entry in next, v do
    local at = ("%s.%s"):format(path, tostring(name))
    if type(name) ~= "string" then complain(d, path, ("%s: an entry without a name"):format(path)) end
    if type(entry) ~= "table" then complain(d, at, ("%s: %s, want a table"):format(at, schema.show(entry))) end
    out[name] = check(d, at, entry, want.entries)
  end
  return out
end

function check(d, path, t, known)
  local out, keys = {}, {}
  for key in next, t do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end) -- the same error every time
  local names = err.names(known)
  table.sort(names)
  for _, key in ipairs(keys) do
    local at = path == "" and tostring(key) or path .. "." .. tostring(key)
    if type(key) ~= "string" or known[key] == nil then
      local near = err.closest(tostring(key), names)
      complain(d, at, ("no field '%s'"):format(at) .. (near and (", did you mean '%s'?"):format(near) or ""),
        { err.known(names) })
    end
    out[key] = check_value(d, at, t[key], known[key])
  end
  return out
end

--- Is this text, or the file of this name, a deployment file and not a recipe? A recipe requires pl.
function M.is(path)
  if not path:find "%.lua$" then return false end
  local text, why = file.read(path, file.recipe)
  if not text and not why:find "No such file" then error(err.new(why), 0) end
  return text ~= nil and not text:find 'require%s*%(?%s*["\']pl["\']'
end

--- A deployment file's text as a checked table; `name` is what errors call it, and what its paths are relative to.
function M.read_text(text, name)
  if text:sub(1, 1) == "\27" then error(err.new("bytecode, want a text", nil, name, nil), 0) end
  local box = sandbox.new({}, LIMITS)
  box.what, box.env = "deployment file", environment(name)
  local t = box:once(box:load(text, name))
  local d = { file = name, lines = lines_of(text) }
  if type(t) ~= "table" then
    complain(d, "", ("a deployment file returns a table, not %s"):format(t == nil and "nothing" or schema.show(t)))
  end
  if debug.getmetatable(t) then complain(d, "", "the table has a metatable, want plain data") end
  d.t = check(d, "", t, fields)
  if not d.t.model and not (d.t.recipe and d.t.weights) then
    complain(d, "", "no 'model': a GGUF file or a Hugging Face directory", { "or 'recipe' and 'weights'" })
  end
  local tls = d.t.tls
  if tls and (tls.cert == nil) ~= (tls.key == nil) then complain(d, "tls", "tls: want both cert and key") end
  local names = err.names(d.t.pools or {})
  table.sort(names)
  if #names > 1 then
    complain(d, "pools." .. names[2], ("pools: %s: one pool is served by a process"):format(table.concat(names, ", ")),
      { "prompts in one pool and answers in another are not there yet" })
  end
  d.pool = names[1]
  return d
end

function M.read(path) return M.read_text(file.need(path, file.recipe), path) end

-- Settings -------------------------------------------------------------------------------------------------

local http_names = { body_bytes = "body_bytes", connections = "max_connections", headers_s = "header_s",
  body_s = "body_s", idle_s = "idle_s", send_s = "send_s", stall_s = "stall_s" }

local function beside(d, path) return file.beside(d.file, path) end

-- A policy's or a recipe's name, or a file.
local function name_or_file(d, name) return name and name:find "[./]" and beside(d, name) or name end

--- What pl.serve.open takes, from a file.
function M.settings(d)
  local t, load, http = d.t, {}, {}
  for key, v in pairs(d.pool and t.pools[d.pool] or {}) do load[key] = v end
  for key, v in pairs(t.tiers or {}) do load[key] = v end
  load.kv_scales, load.disk_cache = beside(d, load.kv_scales), beside(d, load.disk_cache)
  load.weights = t.model and beside(d, t.weights) -- with a recipe in place of a model, they are it
  load.recipe, load.pool = name_or_file(d, t.recipe), d.pool
  if t.path ~= "auto" then load.path = t.path end
  http.address, http.port = t.address or "127.0.0.1", t.port or 8080
  for key, v in pairs(t.limits or {}) do if http_names[key] then http[http_names[key]] = v end end
  if http.body_bytes then http.bodies_bytes = math.max(2 ^ 28, 2 * http.body_bytes) end
  local log = t.access_log
  if type(log) == "string" and log ~= "-" then log = beside(d, log) end
  if log == nil then log = true end
  local context = load.context
  load.context = nil
  return { file = d.file, t = t, model = beside(d, t.model or t.weights), name = t.name, keys = beside(d, t.keys),
    policy = name_or_file(d, t.policy),
    pool = d.pool, context = context, load = load, integrity = t.integrity, tenants = t.tenants or {},
    drain_s = (t.limits or {}).drain_s or 30, vllm_names = t.vllm_names, access_log = log,
    chat_template = beside(d, t.chat_template),
    tls = t.tls and { cert = beside(d, t.tls.cert), key = beside(d, t.tls.key) },
    socket = t.socket ~= "none" and beside(d, t.socket), dir = d.file:match "^(.*/)" or "./", http = http }
end

local live = { keys = true, policy = true, tenants = true, access_log = true, vllm_names = true,
  limits = { drain_s = true } }

local function compare(out, path, a, b)
  if type(a) == "table" or type(b) == "table" then
    a, b = type(a) == "table" and a or {}, type(b) == "table" and b or {}
    local names = {}
    for key in pairs(a) do names[key] = true end
    for key in pairs(b) do names[key] = true end
    for key in pairs(names) do
      compare(out, path and path .. "." .. key or key, a[key], b[key])
    end
  elseif a ~= b then
    out[#out + 1] = path
  end
end

--- What differs between two files' tables: fields that can change while the server runs, and fields that need a
--- restart. The first table takes over those of the first kind.
function M.changes(old, new)
  local all, now, later = {}, {}, {}
  compare(all, nil, old, new)
  table.sort(all)
  for _, path in ipairs(all) do
    local what = live[path:match "^[^.]*"]
    if type(what) == "table" then what = what[path:match "%.(.*)$"] end
    local into = what and now or later
    into[#into + 1] = path
  end
  for key, what in pairs(live) do
    if what == true then
      old[key] = new[key]
    else
      for part in pairs(what) do
        if old[key] or new[key] then
          old[key] = old[key] or {}
          old[key][part] = (new[key] or {})[part]
        end
      end
    end
  end
  return now, later
end

return M
