-- perilune serve: a model, or what a deployment file says, behind OpenAI's API.
local common, deploy = require "pl.cli.common", require "pl.deploy"
local M = { name = "serve", takes = "MODEL|DEPLOY.lua", about = "serve a model over HTTP, in OpenAI's dialect" }

-- Options have no defaults here: what is given overrides a deployment file.
function M.options(p)
  common.compute(p, true)
  common.tiers(p)
  p:option("--address", "Numeric address to listen on. Default: 127.0.0.1."):convert(function(s)
    if deploy.is_address(s) then return s end
    return nil, deploy.ADDRESS
  end):argname "ADDRESS"
  p:option("--port", "Port; 0 = any free one, which is printed. Default: 8080."):convert(common.whole(0, 65535))
    :argname "N"
  p:option("--name", "What the model is called. Default: the last part of its path."):argname "NAME"
  p:option("--keys", "API keys, a line each: KEY TENANT. Read again on SIGHUP."):argname "FILE"
  p:option("--tls-cert", "PEM file of a certificate; with --tls-key: HTTPS."):argname "FILE"
  p:option("--tls-key", "PEM file of its key."):argname "FILE"
  p:option("--batch", "Requests of one step. Default: 16."):convert(common.whole(1, 4096)):argname "N"
  p:option("--chunk", "Tokens of prompts in a step in which requests decode: fewer, and these wait less, but prompts"
    .. " longer. Default: 64, an eighth of a step."):convert(common.whole(1, 2 ^ 20)):argname "N"
  p:option("--queue", "Requests that may wait beside those; more get 429. Default: 256."):convert(common.whole(0, 1e6))
    :argname "N"
  p:option("--context", "Tokens of prompt and answer together. Default: the model's, at most 4096.")
    :convert(common.whole(1)):argname "N"
  p:option("--policy", "Who goes next: a policy's name, or a file that returns function(s).")
    :argname "NAME|FILE"
  p:option("--connections",
    "Connections at once, if the system allows as many descriptors; one more gets a 503. Default: 16384.")
    :convert(common.whole(1, 1e6)):argname "N"
  p:option("--max-body", "Megabytes of a request's body. Default: 8."):convert(common.whole(1, 1024)):argname "MB"
  p:option("--drain", "Seconds that requests under way have after SIGTERM. Default: 30.")
    :convert(common.number(0, 1e6)):argname "S"
  p:option("--socket", "Unix socket for `perilune attach`. Default: perilune-PORT.sock in $XDG_RUNTIME_DIR, or beside"
    .. " the deployment file; none: no socket."):argname "PATH"
  p:flag("--vllm-names", "/metrics shows its figures under vLLM's names too.")
  p:flag("--no-log", "No line of JSON on standard error for each request.")
end

-- Where each option goes: a part of the settings, the name there, the field of a deployment file; its value there.
local targets = {
  { "address", "http", "address", "address" }, { "port", "http", "port", "port" }, { "name", nil, "name", "name" },
  { "keys", nil, "keys", "keys" }, { "policy", nil, "policy", "policy" }, { "socket", nil, "socket", "socket" },
  { "context", nil, "context", "pools.*.context" }, { "connections", "http", "max_connections", "limits.connections" },
  { "drain", nil, "drain_s", "limits.drain_s" }, { "vllm_names", nil, "vllm_names", "vllm_names" },
  { "recipe", "load", "recipe", "recipe" }, { "weights", "load", "weights", "weights" },
  { "path", "load", "path", "path" }, { "tls_cert", "tls", "cert", "tls.cert" },
  { "tls_key", "tls", "key", "tls.key" },
  { "max_body", "http", "body_bytes", "limits.body_bytes", function(megabytes) return megabytes * 2 ^ 20 end },
  { "no_log", nil, "access_log", "access_log", function() return false end } }
for _, name in ipairs { "act", "kv", "kv_scale", "kv_scales", "batch", "chunk", "queue", "threads" } do
  targets[#targets + 1] = { name, "load", name, "pools.*." .. name }
end
for _, name in ipairs { "host_cache_bytes", "disk_cache", "disk_cache_bytes" } do
  targets[#targets + 1] = { name, "load", name, "tiers." .. name }
end

local function field(t, path)
  for name in path:gmatch "[^.]+" do
    if type(t) ~= "table" then return nil end
    t = t[name == "*" and next(t) or name]
  end
  return t
end

-- The settings with the options in place; told(text): an option that overrides what the file says. again: it was a
-- deployment file at the start, and is one now even if it is not there.
local function settings_of(o, told, again)
  local s
  if again or deploy.is(o.model) then
    s = deploy.settings(deploy.read(o.model))
    s.reread = function()
      require("pl.file").ready(o.model)
      return settings_of(o, nil, true)
    end
  else
    s = { model = o.model, load = {}, drain_s = 30,
      access_log = true, http = { address = "127.0.0.1", port = 8080, max_connections = 16384 } }
  end
  if o.tls_cert then s.tls = s.tls or {} end
  for _, to in ipairs(targets) do
    local v, part = o[to[1]], to[2] and s[to[2]] or s
    if v == "auto" and to[1] == "path" then v = nil end
    if v ~= nil then
      local was = s.t and field(s.t, to[4])
      if was ~= nil and told then
        local option = "--" .. to[1]:gsub("_", "-") .. (v == true and "" or " " .. tostring(v))
        told(("%s overrides %s = %s of %s"):format(option, to[4], tostring(was), o.model))
      end
      if to[5] then v = to[5](v) end
      part[to[3]] = v
    end
  end
  if o.socket == "none" then s.socket = false end
  s.http.body_bytes = s.http.body_bytes or 8 * 2 ^ 20
  s.http.bodies_bytes = math.max(2 ^ 28, 2 * s.http.body_bytes)
  return s
end
M.settings_of = settings_of

function M.run(o)
  if (o.tls_cert == nil) ~= (o.tls_key == nil) then
    require("pl.cli").usage(("--tls-%s: want --tls-%s too"):format(o.tls_cert and "cert" or "key",
      o.tls_cert and "key" or "cert"))
  end
  local function log(text) io.stderr:write("perilune: ", text, "\n") end
  local set = settings_of(o, log)
  if set.tls then set.http.cert, set.http.key = require("pl.http").tls_of(set.tls) end
  local s = require("pl.serve").open(set, log)
  local m, address = s.engine_model, set.http.address
  common.written(io.write(("serving %s on %s://%s:%d\n"):format(s.model.name, set.tls and "https" or "http",
    address:find ":" and "[" .. address .. "]" or address, s.http.port)) and io.flush())
  if s.attach then log("attach: " .. s.attach.path) end
  log(("%s, act %s: load %.2f s; %d requests a step, %d tokens each; %d connections"):format(m.dev:describe(),
    m.pool.act, m.load_s, m.pool.batch, m.context, s.http:stats().max_connections))
  local code = s:run()
  local dev = m.dev
  m:close()
  dev:close()
  return code
end

return M
