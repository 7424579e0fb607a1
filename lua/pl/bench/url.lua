-- A load on any server with OpenAI's API, by streams: closed loop (`clients` requests at a time) or open (they come at
-- random times, `rate` a second, Poisson). Counts of tokens are the server's own (`usage`); times are taken where the
-- bytes arrive.
local abi, err, json, quantiles = require "pl.abi", require "pl.err", require "pl.json", require "pl.quantiles"
local client, simulate = require "pl.client", require "pl.simulate"
local file, schema = require "pl.file", require "pl.schema"
local C = abi.C
local M = {}

M.defaults = { requests = 100, rate = 0, clients = 0, input = 200, output = 100, lengths = "fixed", seed = 1,
  api = "chat", prompts = "words", vocab = 1000, temperature = 0, ignore_eos = false, connect_s = 30, stall_s = 600 }
local MAX_LINE = 4 * 2 ^ 20 -- bytes of a line of a file of requests

-- Words that are one token, with the space before them, in any usual vocabulary.
local words = {}
for w in ([[the of and to in is that it for was on are as with they at be this from have or by one had not but what
  all were when we there can an your which their said if do will each about how up out them then she many some so these
  would other into has more her two like him see time could no make than first been its who now people my made over did
  down only way find use may water long little very after called just where most know]]):gmatch "%S+" do
  words[#words + 1] = w
end

-- A prompt of about n tokens: words for a chat, or a text, or ids below `vocab`.
local function prompt_of(o, u, n)
  local list = {}
  if o.prompts == "ids" then
    for i = 1, n do list[i] = math.floor(u() * o.vocab) end
    return json.list(list)
  end
  for i = 1, n do list[i] = words[math.floor(u() * #words) + 1] end
  return table.concat(list, " ")
end

local whole = schema.whole
local fields = { prompt = "string", messages = "table", input = whole(1, 2 ^ 24), output = whole(1, 2 ^ 24) }

--- Requests from a file: a JSON object a line, with prompt (a text) or messages, or input (tokens, made up); and output
--- (tokens). More than there are lines: from the first again.
function M.read(path)
  local f, why = io.open(path, "rb")
  if not f then error(err.new(why), 0) end
  local list, n = {}, 0
  local function bad(what)
    f:close()
    error(err.new(what, nil, path, n), 0)
  end
  for line in file.lines_of(f, path, MAX_LINE) do
    n = n + 1
    if line:find "%S" then
      local ok, r = pcall(json.decode, line)
      if not ok or type(r) ~= "table" then bad "want a JSON object a line" end
      local fine, x = pcall(schema.check, "request", fields, r)
      if not fine then bad(tostring(type(x) == "table" and x.msg or x)) end
      list[#list + 1] = x
    end
  end
  f:close()
  if #list == 0 then error(err.new(path .. ": no requests"), 0) end
  return list
end

-- The k-th request: when it comes, and its body.
local function requests(o)
  local u, trace, k = simulate.random(o.seed + 2 ^ 20), simulate.generate { requests = o.requests, rate = o.rate,
    input = o.input, output = o.output, lengths = o.lengths, tenants = 1, prefix_share = 0, seed = o.seed }, 0
  return function()
    local r = trace()
    if not r then return nil end
    k = k + 1
    local line = o.list and o.list[(k - 1) % #o.list + 1] or {}
    local n_out = line.output or r.output
    local body = { model = o.model, stream = true, stream_options = { include_usage = true }, max_tokens = n_out,
      temperature = o.temperature, seed = o.temperature > 0 and o.seed + k or nil,
      ignore_eos = o.ignore_eos or nil }
    local prompt = line.prompt or not line.messages and prompt_of(o, u, line.input or r.input)
    if o.api == "chat" then
      body.messages = line.messages and json.list(line.messages) or json.list { { role = "user", content = prompt } }
    elseif line.messages then
      error(err.new "a request with messages wants the chat API", 0)
    else
      body.prompt = prompt
    end
    for key, v in pairs(o.more or {}) do body[key] = v end
    return { t = r.t, body = json.encode(body) }
  end
end

local paths = { chat = "/v1/chat/completions", completions = "/v1/completions" }

-- What an event of the stream says, and when.
local function heed(r, data, at)
  local p, why = client.piece(data)
  if not p then
    if why then r.why = r.why or why else r.done = true end
    return
  end
  r.n_in, r.n_out = p.prompt_tokens or r.n_in, p.completion_tokens or r.n_out
  if not p.text and not p.thought then return end
  if not r.first then r.first = at else r.itl[#r.itl + 1] = at - r.last end
  r.last, r.frames = at, r.frames + 1
end

local function begin(c, o, q)
  local r = { itl = {}, frames = 0, body = {}, n_body = 0 }
  r.feed = client.events(function(data) heed(r, data, r.at) end)
  r.began = C.pl_now_s()
  r.id = c:send { url = o.base .. paths[o.api], body = q.body, token = o.token, connect_s = o.connect_s,
    stall_s = o.stall_s, headers = "Content-Type: application/json\nAccept: text/event-stream\n" }
  return r
end

-- Takes an event; true when the request is over.
local function take(r, v)
  if v.kind == "head" then
    r.status = v.status
  elseif v.kind == "data" then
    r.at = v.at
    if r.status == 200 then
      local ok, what = pcall(r.feed, v.data)
      if not ok then r.why = tostring(type(what) == "table" and what.msg or what) end
    elseif r.n_body < 65536 then
      r.body[#r.body + 1], r.n_body = v.data, r.n_body + #v.data
    end
  else
    r.ended = v.at
    if v.status ~= 0 then r.why = v.data
    elseif r.status ~= 200 then r.why = client.problem(r.status or 0, table.concat(r.body))
    elseif not r.done then r.why = r.why or "the stream ended without [DONE]" end
    return true
  end
end

-- One request that is not measured: the connection, the model's name and the fields are right, or it is an error now.
local function try(c, o)
  local one = {}
  for k, v in pairs(o) do one[k] = v end
  one.requests, one.rate, one.lengths, one.output, one.seed = 1, 0, "fixed", 2, o.seed + 2 ^ 21
  local r = begin(c, o, requests(one)())
  while true do
    if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
    local v = c:next(0.2)
    if v and take(r, v) then break end
  end
  if r.why then error(err.new(("%s: %s"):format(o.base .. paths[o.api], r.why)), 0) end
end

local function figures(o, s, list)
  local ttft, tpot, itl, e2e = quantiles.new(), quantiles.new(), quantiles.new(), quantiles.new()
  local f = { successful = 0, failed = 0, input_tokens = 0, output_tokens = 0, seconds = s, errors = json.list {},
    clients = o.clients, rate = o.rate, url = o.base, model = o.model, api = o.api }
  local seen = {}
  for _, r in ipairs(list) do
    if r.why then
      f.failed = f.failed + 1
      if not seen[r.why] and #f.errors < 5 then f.errors[#f.errors + 1] = r.why end
      seen[r.why] = true
    else
      local n_out = r.n_out or r.frames
      f.successful, f.input_tokens = f.successful + 1, f.input_tokens + (r.n_in or 0)
      f.output_tokens = f.output_tokens + n_out
      e2e.add(r.ended - r.began)
      if r.first then
        ttft.add(r.first - r.began)
        if n_out > 1 then tpot.add((r.last - r.first) / (n_out - 1)) end
      end
      for _, t in ipairs(r.itl) do itl.add(t) end
    end
  end
  f.requests = f.successful + f.failed
  f.request_s, f.output_tok_s = f.successful / s, f.output_tokens / s
  f.total_tok_s = (f.input_tokens + f.output_tokens) / s
  f.ttft_s, f.tpot_s, f.itl_s, f.e2e_s = ttft.figures(), tpot.figures(), itl.figures(), e2e.figures()
  return f
end

--- Run one load. o: what M.defaults names; url; model (default: what the server has), token, list (see M.read), more
--- (fields of every body), untried = true (no request before). Returns the figures, as pl.bench does.
function M.run(o)
  for k, v in pairs(M.defaults) do if o[k] == nil then o[k] = v end end
  o.base = client.base(o.url)
  local c = client.open()
  o.model = o.model or c:model_of(o.base, o.token)
  if not o.untried then try(c, o) end
  local feed, ended, open, by_id = requests(o), {}, 0, {}
  local q, start = feed(), C.pl_now_s()
  while q or open > 0 do
    if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
    while q and q.t <= C.pl_now_s() - start and (o.clients == 0 or open < o.clients) do
      local r = begin(c, o, q)
      by_id[r.id], open, q = r, open + 1, feed()
    end
    local blocked = not q or o.clients > 0 and open >= o.clients
    local v = c:next(blocked and 0.2 or q.t - (C.pl_now_s() - start))
    if v and take(by_id[v.id], v) then
      ended[#ended + 1], by_id[v.id], open = by_id[v.id], nil, open - 1
    end
  end
  local s = C.pl_now_s() - start
  c:close()
  return figures(o, s, ended)
end

return M
