-- Requests to HTTP servers: core/client.c as an object, the events of a stream, and what every verb that talks to a
-- server needs: an address with a path, a token from a file, the error in an answer.
local abi, err, json, file = require "pl.abi", require "pl.err", require "pl.json", require "pl.file"
local null = require("cjson").null
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local Client = {}
Client.__index = Client

function M.open()
  local out = abi.new "pl_client *[1]"
  check(C.pl_client_open(out, e))
  return setmetatable({ ptr = abi.gc(out[0], C.pl_client_close), event = abi.new "pl_client_event" }, Client)
end

--- Begin a request: o has what pl_client_opts has. Returns its id.
function Client:send(o)
  local opts, id = abi.new "pl_client_opts", abi.new "int64_t[1]"
  for k, v in pairs(o) do opts[k] = v end
  if o.body then opts.n_body = #o.body end
  check(C.pl_client_send(self.ptr, opts, id, e))
  return tonumber(id[0])
end

function Client:cancel(id) C.pl_client_cancel(self.ptr, id) end

local kinds = { [C.PL_CLIENT_HEAD] = "head", [C.PL_CLIENT_DATA] = "data", [C.PL_CLIENT_END] = "end" }
--- The next event of any request: { id, kind = "head", "data" or "end", status, at, data }; nil after `seconds`, at
--- most a fifth of one, so that the caller can look for Ctrl-C.
function Client:next(seconds)
  local v = self.event
  check(C.pl_client_next(self.ptr, v, math.max(0, math.min(seconds, 0.2)), e))
  if v.kind == C.PL_CLIENT_NONE then return nil end
  return { id = tonumber(v.id), kind = kinds[v.kind], status = v.status, at = v.at_s, data = abi.string(v.data, v.n) }
end

function Client:close()
  if self.ptr then C.pl_client_close(abi.gc(self.ptr, nil)) end
  self.ptr = nil
end

--- Events until the request ends: f(event) for each. Ctrl-C ends it: "cancelled".
function Client:run(o, f)
  local id = self:send(o)
  while true do
    if C.pl_host_interrupted(true) then
      self:cancel(id)
      return "cancelled"
    end
    local v = self:next(0.2)
    if v and v.id == id then
      if f(v) == false then
        self:cancel(id)
        return "stopped"
      end
      if v.kind == "end" then return nil end
    end
  end
end

--- One request as a whole, at most `limit` bytes of it: status, body, head. A connection that fails is an error.
function Client:call(o, limit)
  local parts, status, head, n, why = {}, 0, "", 0, nil
  local how = self:run(o, function(v)
    if v.kind == "head" then status, head = v.status, v.data
    elseif v.kind == "end" then why = v.status ~= 0 and v.data or nil
    else
      parts[#parts + 1], n = v.data, n + #v.data
      return n <= limit
    end
  end)
  if how == "cancelled" then err.raise("interrupted", nil, "ECANCEL") end
  if how then error(err.new(("%s: an answer of more than %d bytes"):format(o.url, limit)), 0) end
  if why then error(err.new(("%s: %s"):format(o.url, why)), 0) end
  return status, table.concat(parts), head
end

--- A header of an answer's head; nil: it has none of that name.
function M.header(head, name)
  for k, v in head:gmatch "\n([^:\r\n]+):%s*([^\r\n]*)" do
    if k:lower() == name then return v end
  end
  return nil
end

--- What a server says is wrong, in one line.
function M.problem(status, body)
  local ok, t = pcall(json.decode, body)
  local said = ok and type(t) == "table" and t.error
  if type(said) == "table" then said = said.message end
  said = type(said) == "string" and said or body:match "^[^\n]*"
  return ("status %d%s"):format(status, said ~= "" and ": " .. err.printable(said):sub(1, 300) or "")
end

--- A server's address without a trailing slash or /v1.
function M.base(url)
  if not url:find "^https?://[^/]" then
    error(err.new(("'%s' is not an address, want http://HOST:PORT"):format(err.printable(url))), 0)
  end
  return (url:gsub("/+$", ""):gsub("/v1$", ""))
end

--- The secret that a file holds: its first line.
function M.token(path)
  local text, why = file.read(path, file.line)
  local token = text and text:match "^%s*([^%s]+)%s*$"
  if not token then error(err.new(why or path .. ": want one line, a key or token"), 0) end
  return token
end

--- A reader of server-sent events: feed it pieces, it calls f(data) for each event.
local MAX_EVENT = 16 * 2 ^ 20
function M.events(f)
  local held = ""
  return function(piece)
    held = held .. piece
    local at = 1
    while true do
      local a, b = held:find("\r?\n\r?\n", at)
      if not a then break end
      local lines = {}
      for line in held:sub(at, a - 1):gmatch "[^\r\n]+" do
        lines[#lines + 1] = line:match "^data: ?(.*)"
      end
      at = b + 1
      if #lines > 0 then f(table.concat(lines, "\n")) end
    end
    held = held:sub(at)
    if #held > MAX_EVENT then err.raise "client: an event of more than 16 MB" end
  end
end

local function part(v) return type(v) == "string" and v ~= "" and v or nil end

--- What an event of a stream of completions says, each if it is there: { text =, thought = (of a model that reasons),
--- finish =, prompt_tokens =, completion_tokens =, cached_tokens = }; false at the end of the stream; nil and what is
--- wrong, or what the server says is.
function M.piece(data)
  if data == "[DONE]" then return false end
  local ok, t = pcall(json.decode, data)
  if not ok or type(t) ~= "table" then return nil, "an event that is not JSON" end
  if type(t.error) == "table" then return nil, err.printable(tostring(t.error.message)) end
  local p, usage = {}, type(t.usage) == "table" and t.usage
  if usage then
    local details = type(usage.prompt_tokens_details) == "table" and usage.prompt_tokens_details or {}
    for name, from in pairs { prompt_tokens = usage, completion_tokens = usage, cached_tokens = details } do
      local n = from[name]
      if type(n) == "number" and n % 1 == 0 and n >= 0 and n <= 2 ^ 31 then p[name] = n
      elseif n ~= nil and n ~= null then return nil, ("usage: %s: %s, want a count"):format(name, tostring(n)) end
    end
  end
  local choice = type(t.choices) == "table" and t.choices[1]
  if type(choice) ~= "table" then return p end
  local delta = type(choice.delta) == "table" and choice.delta or {}
  p.text, p.thought = part(choice.text) or part(delta.content), part(delta.reasoning_content) or part(delta.reasoning)
  p.finish = part(choice.finish_reason)
  return p
end

--- The one model that a server has, or the first.
function Client:model_of(base, token)
  local url = base .. "/v1/models"
  local status, body = self:call({ url = url, token = token, connect_s = 10, total_s = 30 }, 2 ^ 22)
  if status ~= 200 then error(err.new(("%s: %s"):format(url, M.problem(status, body))), 0) end
  local ok, t = pcall(json.decode, body)
  local first = ok and type(t) == "table" and type(t.data) == "table" and t.data[1]
  if type(first) ~= "table" or type(first.id) ~= "string" then error(err.new(url .. ": no model in the answer"), 0) end
  return first.id
end

return M
