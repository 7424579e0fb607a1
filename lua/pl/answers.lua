-- A client's request while the engine works on it: one engine request for each answer (choice) that it wants, the
-- pieces of text that these make, stop texts across tokens, and what is to be told the client after each step.
local abi, err, openai = require "pl.abi", require "pl.err", require "pl.openai"
local C = abi.C
local M = {}

-- Texts of tokens ------------------------------------------------------------------------------------------

local function is_utf8(s)
  local rest = s:gsub("[%z\1-\127]+", ""):gsub("[\194-\223][\128-\191]", "")
    :gsub("[\224-\239][\128-\191][\128-\191]", ""):gsub("[\240-\244][\128-\191][\128-\191][\128-\191]", "")
  return rest == ""
end

-- { text, bytes } of a token by itself; a part of a character is shown as its bytes are written.
local function token_of(tok, id)
  local n = abi.new "int32_t[1]"
  local bytes = abi.text(C.pl_tok_bytes(tok.ptr, id, n), n[0]) or ""
  if C.pl_tok_is_special(tok.ptr, id) then bytes = abi.text(C.pl_tok_name(tok.ptr, id, n), n[0]) or "" end
  local text = is_utf8(bytes) and bytes
    or "bytes:" .. bytes:gsub(".", function(c) return ("\\x%02x"):format(c:byte()) end)
  return { text = text, bytes = bytes }
end

local function with_logprob(tok, entry)
  local t = token_of(tok, entry.id)
  t.logprob, t.top = math.max(entry.logprob, -9999), {}
  for i, other in ipairs(entry.top) do
    t.top[i] = token_of(tok, other[1])
    t.top[i].logprob = math.max(other[2], -9999)
  end
  return t
end

-- Choices --------------------------------------------------------------------------------------------------

local Choice = {}
Choice.__index = Choice

-- How many bytes at the end of s may be the beginning of a stop text.
local function held_back(s, stops)
  local most = 0
  for _, stop in ipairs(stops) do
    for n = math.min(#stop - 1, #s), most + 1, -1 do
      if s:sub(-n) == stop:sub(1, n) then
        most = n
        break
      end
    end
  end
  return most
end

-- Text that may be told, with the probabilities of the tokens that it came from.
function Choice:piece(text)
  if text == "" and not self.logprobs[1] then return end
  self.pieces[#self.pieces + 1] = { text = text, logprobs = self.job.o.logprobs and self.logprobs or nil }
  self.logprobs = {}
end

-- More text: what cannot be part of a stop text any more is told. Returns true where the answer ends here.
function Choice:add(text, is_last)
  local o = self.job.o
  local s = self.held .. text
  if #o.stops > 0 and #self.request.ids >= o.min_tokens then
    local first, last
    for _, stop in ipairs(o.stops) do
      local a, b = s:find(stop, 1, true)
      if a and (not first or a < first) then first, last = a, b end
    end
    if first then
      self.held = ""
      self:piece(s:sub(1, o.keep_stop and last or first - 1))
      return true
    end
  end
  local n = is_last and 0 or held_back(s, o.stops)
  self.held = s:sub(#s - n + 1)
  self:piece(s:sub(1, #s - n))
end

function Choice:token(id)
  local r, o = self.request, self.job.o
  if o.logprobs then self.logprobs[#self.logprobs + 1] = with_logprob(self.job.tok, r.logprobs[#r.logprobs]) end
  if self:add(self.text(id)) then self.finish = "stop" end -- its request ends after the step
end

-- Jobs -----------------------------------------------------------------------------------------------------

local prefixes = { chat = "chatcmpl", completion = "cmpl", embedding = "embd" }

--- A job for request r of the server's HTTP side, o as pl.openai reads it.
function M.job(server, r, o, number)
  local name = o.name or ("%x%06x"):format(server.started, number)
  return { http_id = r.id, o = o, name = prefixes[o.kind] .. "-" .. name, created = os.time(),
    model = server.model.name, fingerprint = "perilune-" .. abi.version(), tenant = r.tenant, choices = {},
    prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, tok = server.engine_model:tokenizer(),
    engine = server.engine_model.engine }
end

--- What the engine raised about a request, for its client: misuse is told; anything else stays as it is, and becomes
--- an internal error.
function M.not_taken(e) return err.is(e) and e.code == "EARG" and openai.refusal(e.msg) or e end

--- Hands a job's requests to the engine. Raises a refusal.
function M.submit(job, model)
  local o, tok = job.o, job.tok
  for p, prompt in ipairs(o.prompts) do
    for k = 1, o.n do
      local c = setmetatable({ job = job, index = #job.choices, pieces = {}, logprobs = {}, held = "", told = 0,
        prompt = p, text = tok:stream() }, Choice)
      local q = { tenant = job.tenant, logprobs = o.logprobs, on_token = function(id) c:token(id) end }
      for name, v in pairs(o.engine) do q[name] = v end
      q.seed = ((o.seed or math.random(0, 2 ^ 52)) + #job.choices) % 2 ^ 53
      q.max_tokens = o.max_tokens or math.max(model.context - prompt.n, 1)
      if o.echo then c.pieces[1] = { text = prompt.text } end
      if job.engine:room(job.tenant) < 1 then error(openai.full(job.engine, job.tenant), 0) end
      local ok, request = pcall(job.engine.submit, job.engine, q, nil, nil, nil, prompt)
      if not ok then error(M.not_taken(request), 0) end
      if not request then error(openai.full(job.engine, job.tenant), 0) end
      c.request = request
      job.choices[#job.choices + 1] = c
    end
  end
end

--- The engine forgets a job's requests.
function M.cancel(job, engine)
  for _, c in ipairs(job.choices) do
    if c.request and not c.request.finish then engine:cancel(c.request) end
    c.finish = c.finish or "cancelled"
  end
end

local causes = { deadline = "the request's time is over", integrity = "a page of the cache was damaged or not its own",
  error = "the request failed", cancelled = "the request was cancelled" }

--- What the client of a request that did not end well is told.
function M.failure(r)
  local o = { status = r.finish == "deadline" and 504 or 500, code = r.finish }
  return openai.refusal(r.error or causes[r.finish], o)
end

-- A choice whose request has ended: the rest of its text, and how it ended.
local function conclude(job, c)
  local r = c.request
  if r.finish == "stop" or r.finish == "length" then
    c.finish = c:add(c.text(nil), true) and "stop" or r.finish
  else
    job.refusal = M.failure(r)
    c.finish = "error"
  end
end

-- Sums over choices; a prompt counts once.
local function count(job)
  local seen = {}
  job.prompt_tokens, job.completion_tokens, job.cached_tokens = 0, 0, 0
  for _, c in ipairs(job.choices) do
    job.completion_tokens = job.completion_tokens + c.request.n_out
    if not seen[c.prompt] then
      job.prompt_tokens = job.prompt_tokens + (c.request.prompt_tokens or 0)
      job.cached_tokens = job.cached_tokens + math.min(c.request.n_cached or 0, c.request.prompt_tokens or 0)
    end
    seen[c.prompt] = true
  end
end

--- What the client is to be told now: the frames of a stream, or nil; and whether the job is over. job.refusal is set
--- where it has failed.
function M.news(job)
  local out, all, any = {}, true, false
  for _, c in ipairs(job.choices) do
    local r = c.request
    if r.finish and not c.finish then conclude(job, c) end
    if c.finish and not r.finish then job.engine:complete(r) end
    all = all and c.finish ~= nil
    any = any or c.finish ~= nil or #r.ids > 0
  end
  if job.refusal then
    return job.begun and openai.error_frame(job.refusal) or nil, true
  end
  if all then count(job) end
  if not job.o.stream then return nil, all end
  if not any then return nil, false end -- nothing is sent before the first event
  if not job.begun then out[1] = openai.first_frames(job) end
  for _, c in ipairs(job.choices) do
    for i = c.told + 1, #c.pieces do
      out[#out + 1] = openai.piece_frame(job, c, c.pieces[i])
      c.pieces[i] = false -- told: a stream keeps nothing
    end
    c.told = #c.pieces
    if c.finish and not c.concluded then
      c.concluded = true
      out[#out + 1] = openai.finish_frame(job, c)
    end
  end
  if all then out[#out + 1] = openai.last_frames(job) end
  local text = table.concat(out)
  return text ~= "" and text or nil, all
end

--- Figures for the log.
function M.note(job)
  return { prompt_tokens = job.prompt_tokens, completion_tokens = job.completion_tokens,
    cached_tokens = job.cached_tokens, error = job.refusal and job.refusal.code or nil }
end

return M
