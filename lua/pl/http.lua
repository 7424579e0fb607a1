-- The HTTP server of core/http.c as an object: requests are pulled, answers are pushed, and no call waits for a client.
local abi, err, file, json = require "pl.abi", require "pl.err", require "pl.file", require "pl.json"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local Http = {}
Http.__index = Http

--- o: what pl_http_opts has, each with a default.
function M.open(o)
  local opts, out = abi.new "pl_http_opts", abi.new "pl_http *[1]"
  C.pl_http_defaults(opts)
  for k, v in pairs(o) do opts[k] = v end
  local rc = C.pl_http_open(out, opts, e)
  local in_use = rc < 0 and abi.string(e.msg):find "in use"
  check(rc, in_use and { "--port names another one, 0 takes any that is free" } or nil)
  return setmetatable({ ptr = abi.gc(out[0], C.pl_http_close), request = abi.new "pl_http_request",
    port = C.pl_http_port(out[0]) }, Http)
end

--- The text of a file of API keys, looked through; nil where there is none.
function M.keys_of(path)
  if not path then return nil end
  local text = file.need(path, file.recipe)
  check(C.pl_http_keys(nil, text, #text, e), { path .. ": a line each: KEY TENANT" })
  return text
end

local function pem(path, label, what)
  local text = file.need(path, file.recipe)
  if not text:find("%-%-%-%-%-BEGIN [%w ]*" .. label .. "%-%-%-%-%-") then
    error(err.new(("%s: no %s in PEM format"):format(path, what)), 0)
  end
  return text
end
--- The texts of the files of tls: { cert =, key = }.
function M.tls_of(tls)
  return pem(tls.cert, "CERTIFICATE", "certificate"), pem(tls.key, "PRIVATE KEY", "private key")
end

--- The next request: { id, method, path, query, type, request_id, tenant, body }, or { id, gone = true } when a client
--- has left (body nil: no memory); nil after `seconds`, or when the descriptor fd (-1: none) is readable.
function Http:next(fd, seconds)
  local r = self.request
  check(C.pl_http_next(self.ptr, r, fd, seconds, e))
  if r.kind == C.PL_HTTP_NONE then return nil end
  local id = tonumber(r.id)
  if r.kind == C.PL_HTTP_GONE then return { id = id, gone = true } end
  local ok, body = pcall(abi.string, r.body, tonumber(r.n_body))
  return { id = id, method = abi.string(r.method), path = abi.string(r.path), query = abi.string(r.query),
    type = abi.string(r.type), request_id = abi.string(r.request_id), tenant = r.tenant,
    tenant_name = abi.string(r.tenant_name),
    body = ok and body or nil }
end

--- Answers return nil and a code ("ECANCEL") where the client is gone.
function Http:answer(id, status, body, headers)
  return check(C.pl_http_answer(self.ptr, id, status, headers or "Content-Type: application/json\n", body, #body, e))
end
function Http:json(id, status, value, headers)
  return self:answer(id, status, json.encode(value), "Content-Type: application/json\n" .. (headers or ""))
end

--- A stream of events. send: nil and "EFULL" where the client does not read; it is given up then.
function Http:begin(id)
  return check(C.pl_http_begin(self.ptr, id, 200,
    "Content-Type: text/event-stream; charset=utf-8\nCache-Control: no-cache\nX-Accel-Buffering: no\n", e))
end
function Http:send(id, data) return check(C.pl_http_send(self.ptr, id, data, #data, e)) end
function Http:finish(id) return check(C.pl_http_end(self.ptr, id, e)) end

--- Figures for the line that the request leaves in the log.
function Http:note(id, t) C.pl_http_note(self.ptr, id, json.encode(t):sub(2, -2)) end

function Http:keys(text) check(C.pl_http_keys(self.ptr, text, #text, e)) end
function Http:n_tenants() return C.pl_http_tenants(self.ptr) end
function Http:beat(ready, stepped) C.pl_http_beat(self.ptr, ready, stepped) end
function Http:drain() C.pl_http_drain(self.ptr) end

local counters = { "connections", "requests", "refused", "overloads", "unauthorized", "gone", "slow", "timeouts",
  "log_dropped", "bytes_in", "bytes_out", "n_connections", "n_open",
  "max_connections" }
function Http:stats()
  local m, out = abi.new "pl_http_stats", {}
  C.pl_http_get_stats(self.ptr, m)
  for _, k in ipairs(counters) do out[k] = tonumber(m[k]) end
  return out
end

function Http:close()
  if self.ptr then C.pl_http_close(abi.gc(self.ptr, nil)) end
  self.ptr = nil
end

M.DEPTH, M.VALUES = 64, 400000 -- of a body

--- A body as a table; nil and what is wrong with it. null is json.null's kin, cjson.null: see M.given.
function M.decode(body)
  local rc = C.pl_json_check(body, #body, M.DEPTH, M.VALUES, e)
  if rc == C.PL_ENOMEM then err.raise(abi.string(e.msg)) end
  if rc < 0 then return nil, abi.string(e.msg) end
  local ok, t = pcall(json.decode, body)
  if not ok then return nil, err.is(t) and t.msg or tostring(t) end
  return t
end

return M
