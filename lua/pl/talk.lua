-- A conversation: what was said, turn by turn, with a model of this process or behind a server with OpenAI's API. A
-- turn that fails, whatever the reason, leaves the conversation as it was.
local arg, client, err = require "pl.arg", require "pl.client", require "pl.err"
local json, schema = require "pl.json", require "pl.schema"
local M = {}

local Talk = {}
Talk.__index = Talk

-- What an answer may be told; on a server, what is not given is the server's to say.
local sampling = { max_tokens = schema.whole(1), temperature = schema.number(0, 100), top_p = schema.number(1e-6, 1),
  min_p = schema.number(0, 1), top_k = schema.whole(0), seed = schema.whole(0, 2 ^ 53),
  repetition_penalty = schema.number(0.01, 100) }
local fields = { model = "table", url = "string", name = "string", key_file = "string", system = "string" }
for k, want in pairs(sampling) do fields[k] = want end

-- A model of this process -----------------------------------------------------------------------------------------

local function of_model(m)
  m:chat_template() -- what is wrong with it is told at once
  return function(messages, o, show)
    local ids = m:tokenizer():encode(m:render { messages = messages }, { specials = true })
    if #ids >= m.context then
      err.raise(("the conversation has %d tokens, the context holds %d"):format(#ids, m.context))
    end
    local q = { ids = ids, stream = show }
    for k in pairs(sampling) do q[k] = o[k] end
    q.max_tokens = o.max_tokens or m.context - #ids
    local g = m:generate(q)
    if g.finish ~= "stop" and g.finish ~= "length" and g.finish ~= "cancelled" then
      err.raise("the answer ended with: " .. g.finish)
    end
    return { text = g.text, finish = g.finish, prompt_tokens = #ids, cached_tokens = g.cached_tokens,
      completion_tokens = #g.ids }
  end
end

-- A server ----------------------------------------------------------------------------------------------------------

local PATH, MAX_PROBLEM = "/v1/chat/completions", 65536

-- What an event of the stream says.
local function heed(r, data, show)
  local p, why = client.piece(data)
  if not p then
    if why then r.why = why else r.done = true end
    return
  end
  for _, k in ipairs { "finish", "prompt_tokens", "completion_tokens", "cached_tokens" } do r[k] = p[k] or r[k] end
  if p.thought then -- shown, and no part of the answer
    r.thinks = true
    if show then show(p.thought) end
  end
  if not p.text then return end
  r.parts[#r.parts + 1] = p.text
  if show then show(r.thinks and "\n\n" .. p.text or p.text) end
  r.thinks = nil
end

local function of_server(o)
  local c, base = client.open(), client.base(o.url)
  local token = o.key_file and client.token(o.key_file)
  local name = o.name or c:model_of(base, token)
  return function(messages, q, show)
    local body = { model = name, messages = json.list(messages), stream = true,
      stream_options = { include_usage = true } }
    for k in pairs(sampling) do body[k] = q[k] end
    local r, status, problem, lost = { parts = {} }, 0, "", nil
    local feed = client.events(function(data) if not r.why then heed(r, data, show) end end)
    local how = c:run({ url = base .. PATH, body = json.encode(body), token = token, connect_s = 10, stall_s = 600,
      headers = "Content-Type: application/json\nAccept: text/event-stream\n" }, function(v)
      if v.kind == "head" then status = v.status
      elseif v.kind == "end" then r.why = r.why or v.status ~= 0 and v.data or nil
      elseif status == 200 then
        local ok, e = pcall(feed, v.data)
        if not ok then lost = e end
        return ok and not r.why
      elseif #problem < MAX_PROBLEM then problem = problem .. v.data end
    end)
    if lost then error(lost, 0) end
    if how ~= "cancelled" then
      local why = r.why or status ~= 200 and client.problem(status, problem)
        or not r.done and "the stream ended before the answer did"
      if why then err.raise(("%s: %s"):format(base, why)) end
    end
    return { text = table.concat(r.parts), finish = how or r.finish or "stop", prompt_tokens = r.prompt_tokens,
      cached_tokens = r.cached_tokens, completion_tokens = r.completion_tokens }
  end, name
end

-- The conversation -----------------------------------------------------------------------------------------------

--- A conversation. o: model (of pl.load), or url, with name (of the model there; default: the first) and key_file (an
--- API key); system (a text), and of each answer max_tokens, temperature, top_p, min_p, top_k, seed,
--- repetition_penalty.
function M.new(o)
  o = schema.check("talk", fields, o)
  if (o.model == nil) == (o.url == nil) then err.raise "talk: want one of model (of pl.load) and url" end
  local t = setmetatable({ options = o, system = o.system, messages = {} }, Talk)
  if o.model then t.answer, t.name = of_model(o.model), o.model.file:gsub("/+$", ""):match "[^/]*$"
  else t.answer, t.name = of_server(o) end
  return t
end

--- One turn: says the text, returns the answer: { text, finish = "stop", "length" or "cancelled" (by Ctrl-C),
--- prompt_tokens, cached_tokens, completion_tokens }, which prints as its text. show(text) gets pieces as they come.
--- Raises what went wrong; then the turn has not been. So has one that was cancelled before its first word.
function Talk:say(text, show)
  local messages = {}
  if self.system then messages[1] = { role = "system", content = self.system } end
  for _, m in ipairs(self.messages) do messages[#messages + 1] = m end
  local said = { role = "user", content = text }
  messages[#messages + 1] = said
  local r = self.answer(messages, self.options, show)
  if r.text ~= "" or r.finish ~= "cancelled" then
    local own = self.messages
    own[#own + 1], own[#own + 2] = said, { role = "assistant", content = r.text }
  end
  return setmetatable(r, { __tostring = function(a) return a.text end })
end

--- From the beginning; the system prompt stays.
function Talk:reset() self.messages = {} end

Talk.__tostring = function(t) return ("a conversation with %s: %d turns"):format(t.name, #t.messages / 2) end

--- Makes a text, in pieces, harmless for a terminal: what it would act on, but tab and newline, becomes U+FFFD.
function M.harmless()
  local held = "" -- the first byte of a character that may be a control code of two
  return function(piece)
    piece = held .. piece
    held = piece:match "\194$" or ""
    return (piece:sub(1, #piece - #held):gsub("\r", ""):gsub("[%z\1-\8\11-\31\127]", "\239\191\189")
      :gsub("\194[\128-\159]", "\239\191\189"))
  end
end

M.new = arg.check("talk", "pl.talk", { "o", "table" }, nil, M.new)
arg.methods("talk", Talk, arg.object("conversation", Talk), { say = { "text", "string", "show?", "function" },
  reset = {} })

return M
