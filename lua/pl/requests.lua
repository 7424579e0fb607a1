-- What a client asks: from a request's body to what the engine takes, or to an answer: JSON, checks, the chat template,
-- tokens. It needs no engine: the server hands bodies to its front threads (pl.front), and does small ones itself.
local abi, err, json = require "pl.abi", require "pl.err", require "pl.json"
local http, openai = require "pl.http", require "pl.openai"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

--- What a body can be; a letter to the front has the number of one.
M.kinds = { "completion", "chat", "embedding", "tokenize", "detokenize" }
for i, name in ipairs(M.kinds) do M.kinds[name] = i end

local Reader = {}
Reader.__index = Reader

--- What a reader needs to know, as a text: the server's model, its context, and a chat template, if there is one.
function M.setup(model, context, chat)
  return json.encode { name = model.name, vocab = model.vocab, stops = json.list(model.stops), pooling = model.pooling,
    width = model.width, context = context,
    chat = chat and { source = chat.template.source, name = chat.name, tokens = chat.tokens } or nil }
end

--- A reader with that text, and a tokenizer.
function M.reader(setup, tok)
  local model = json.decode(setup)
  return setmetatable({ model = model, tok = tok, chat = model.chat and require("pl.chat").of(model.chat) }, Reader)
end

local function body_of(body)
  if body == "" then error(openai.refusal "the body is empty, want JSON", 0) end
  local t, why = http.decode(body)
  if t == nil then error(openai.refusal(why), 0) end
  if not body:find "^%s*{" then error(openai.refusal "the body is no JSON object", 0) end -- [] is decoded as {} is
  return t
end

-- Prompts --------------------------------------------------------------------------------------------------

local function room(self, o, n)
  local wanted, context = o.max_tokens or math.max(o.min_tokens, 1), self.model.context
  if n + math.max(wanted, 1) > context and not (wanted == 0 and n <= context) then
    local message = "the context holds %d tokens; %d of prompt and %d of answer are too many"
    error(openai.refusal(message:format(context, n, wanted), { code = "context_length_exceeded",
      param = o.kind == "chat" and "messages" or "prompt" }), 0)
  end
end

-- A text or a list of ids as { ids = int32_t *, n }.
local function tokens(self, o, prompt)
  if type(prompt) == "table" then return { ids = abi.array("int32_t", prompt), n = #prompt } end
  local list = abi.gc(abi.new "pl_ids", C.pl_ids_free)
  local flags = (o.bos and C.PL_TOK_BOS or 0) + (o.specials and C.PL_TOK_SPECIALS or 0)
  check(C.pl_tok_encode(self.tok.ptr, list, prompt, #prompt, flags, e))
  return { ids = list.id, n = list.n, held = list }
end

-- Prompts as such; text: for an echo.
local function prompts(self, o)
  local field = o.kind == "chat" and "messages" or "prompt"
  for p, prompt in ipairs(o.prompts) do
    local one = tokens(self, o, prompt)
    if one.n == 0 then error(openai.refusal(openai.place(field, o, p) .. ": no tokens", { param = field }), 0) end
    room(self, o, one.n)
    if o.echo then one.text = type(prompt) == "table" and self.tok:decode(prompt) or prompt end
    o.prompts[p] = one
  end
  return o
end

-- Messages as the template gets them: keys in the order that the client chose; what pl.openai has changed in them.
local function messages_of(ordered, messages)
  for i, m in ipairs(messages) do
    local d = ordered[i]
    if type(d.at.content) == "table" and type(m.content) == "string" then d.at.content = m.content end
    for k = #d.keys, 1, -1 do
      if d.keys[k] == "tool_calls" and m.tool_calls == nil then
        table.remove(d.keys, k)
        d.at.tool_calls = nil
      end
    end
  end
  return ordered
end

local readers = {} -- by name: the options of an answer; or nil and a table that is the answer

function readers.completion(self, body) return prompts(self, openai.completion(body_of(body), self.model)) end

function readers.chat(self, body)
  local o = openai.chat(body_of(body), self.model)
  local function refuse(why) error(openai.refusal("messages: " .. why, { param = "messages" }), 0) end
  if not self.chat then refuse "this model has no chat template" end -- why, and where not, is in the server's log
  local ok, text = pcall(function()
    local b = require("pl.template").json(body).at
    local vars, more = {}, o.template and b.chat_template_kwargs
    for _, k in ipairs(more and more.keys or {}) do vars[k] = more.at[k] end
    if o.tools then vars.tools = b.tools end
    vars.messages = messages_of(b.messages, o.messages)
    vars.add_generation_prompt, vars.continue_final_message = o.generation_prompt, o.continues
    return self.chat:prompt(vars)
  end)
  if not ok and (not err.is(text) or text.kind == "internal") then error(text, 0) end
  if not ok then refuse("the chat template: " .. text.msg) end
  o.prompts, o.specials, o.messages = { text }, true, nil
  return prompts(self, o)
end

function readers.embedding(self, body)
  local o, sum = openai.embedding(body_of(body), self.model), 0
  o.prompts, o.inputs = o.inputs, nil
  for i, input in ipairs(o.prompts) do
    local one = tokens(self, o, input)
    local function refuse(message, code) error(openai.refusal(message, { param = "input", code = code }), 0) end
    local place = openai.place("input", o, i)
    if one.n == 0 then refuse(place .. ": no tokens") end
    if one.n > self.model.context then
      refuse(("%s: %d tokens, the context holds %d"):format(place, one.n, self.model.context),
        "context_length_exceeded")
    end
    sum = sum + one.n
    if sum > openai.MAX_INPUT_TOKENS then openai.too_many_tokens(sum, i) end
    o.prompts[i] = one
  end
  return o
end

function readers.tokenize(self, body)
  local o = openai.tokenize(body_of(body), self.model)
  local list = self.tok:encode(o.text, { bos = o.bos, specials = o.specials })
  return nil, { tokens = json.list(list), count = #list, max_model_len = self.model.context }
end

function readers.detokenize(self, body)
  local list = openai.detokenize(body_of(body), self.model)
  return nil, { prompt = self.tok:decode(list, { specials = true }) }
end

--- What a body of that kind (a number of M.kinds) asks: the options of an answer, as pl.answers takes them; or nil, a
--- status and the text of an answer. Raises what is nobody's mistake.
function Reader:read(kind, body)
  local ok, o, answer = pcall(readers[M.kinds[kind]], self, body)
  if ok and o then return o end
  if ok then return nil, 200, json.encode(answer) end
  if not openai.is_refusal(o) then error(o, 0) end
  return nil, o.status, json.encode(openai.error_body(o))
end

-- Letters --------------------------------------------------------------------------------------------------

-- A text's length in front of it.
local HEAD = 12
local function headed(text) return ("%012d"):format(#text) .. text end
local function behead(data, n)
  local length = tonumber(abi.string(data, HEAD))
  return abi.string(data + HEAD, length), data + (HEAD + length), tonumber(n) - HEAD - length
end

--- A body for the front, with what its reader has to know.
function M.letter(setup, body) return headed(setup) .. body end

local last_setup, last_reader -- of this interpreter

--- The front's side: the data of its answer, and a code: 0, or an answer's status.
function M.answer(letter, tok)
  local setup, data, n = behead(letter.data, letter.n)
  if setup ~= last_setup then last_reader, last_setup = M.reader(setup, tok()), setup end
  local o, status, text = last_reader:read(letter.code, abi.string(data, n))
  if not o then return text, status end
  local out, bias = { "" }, {}
  for id, v in pairs(o.engine.logit_bias or {}) do bias[#bias + 1] = json.list { id, v } end
  for p, one in ipairs(o.prompts) do
    out[p + 1] = abi.string(one.ids, one.n * 4)
    o.prompts[p] = { n = one.n, text = one.text }
  end
  o.engine.logit_bias = o.engine.logit_bias and json.list(bias)
  text = json.encode(o)
  out[1] = headed(text)
  return table.concat(out), 0
end

--- The engine's side: the options of an answer.
function M.options(letter)
  local text, data, n = behead(letter.data, letter.n)
  local o, bias, at = json.decode(text), {}, 0
  for _, pair in ipairs(o.engine.logit_bias or {}) do bias[pair[1]] = pair[2] end
  o.engine.logit_bias = o.engine.logit_bias and bias
  o.held = abi.new("int32_t[?]", n / 4)
  abi.copy(o.held, data, n)
  for _, one in ipairs(o.prompts) do one.ids, at = o.held + at, at + one.n end
  return o
end

return M
