-- OpenAI's dialect: what a request may say, and what answers look like. A field that is known but not honoured is an
-- error that names it; one that nobody knows is passed over. An answer and a stream are made from the same list of
-- pieces.
local json, schema = require "pl.json", require "pl.schema"
local M = {}

local null = require("cjson").null
local whole, number = schema.whole, schema.number

M.MAX_CHOICES, M.MAX_STOPS, M.MAX_LIST = 128, 16, 1024
M.MAX_INPUTS, M.MAX_INPUT_TOKENS = 2048, 300000 -- of one request for embeddings

-- Refusals ------------------------------------------------------------------------------------------------

local Refusal = { __tostring = function(r) return r.message end }
Refusal.__index = Refusal

local types = { [401] = "authentication_error", [404] = "not_found_error", [405] = "invalid_request_error",
  [429] = "rate_limit_error", [500] = "server_error", [503] = "server_error" }

--- An error that is the client's to hear: o.param, o.code, o.status (default 400), o.allow: what a 405 names.
function M.refusal(message, o)
  o = o or {}
  return setmetatable({ message = message, param = o.param, code = o.code, status = o.status or 400, allow = o.allow },
    Refusal)
end
function M.is_refusal(e) return getmetatable(e) == Refusal end
local function refuse(message, param, code) error(M.refusal(message, { param = param, code = code }), 0) end

--- To a client that came when as many requests ran or waited as there are places for (a pool's batch and queue), or
--- as many of its tenant as may while others have taken less than is theirs. n, of: bodies that are being read, of all
--- and of each tenant, where there is no room for another.
function M.full(engine, tenant, n, of)
  local what = n and "are being read" or "run or wait"
  n, of = n or engine.n_open, of or engine.of_tenant
  local all = n >= engine.places or engine.n_tenants < 2
  return M.refusal(("no room for another request%s: %d %s, try again later"):format(all and "" or " of this tenant",
    all and n or of[tenant] or 0, what), { status = 429 })
end

--- The body of an error.
function M.error_body(r)
  return { error = { message = r.message, type = types[r.status] or "invalid_request_error",
    param = r.param or json.null, code = r.code or json.null } }
end

-- Fields ---------------------------------------------------------------------------------------------------

-- A value as a client knows it. An empty list and an empty object are the same by now.
local function shown(v)
  if v == null then return "null" end
  if type(v) ~= "table" then return schema.show(v) end
  return #v > 0 and "a list" or next(v) ~= nil and "an object" or "an empty list or object"
end

-- schema.wrong, in a client's words.
local function wrong(v, want)
  local bad, part = schema.wrong(v, want)
  if bad and not part and (v == null or type(v) == "table") then bad = bad:gsub("^a %l+", shown(v)) end
  return bad, part
end

-- Entries have numbers as in JSON: the first is [0].
local function list_of(want, most)
  return function(v)
    if type(v) ~= "table" or #v == 0 and next(v) ~= nil then return shown(v) .. ", want a list" end
    if #v > most then return ("a list of %d, want at most %d"):format(#v, most) end
    for i = 1, #v do
      local bad, part = wrong(v[i], want)
      if bad then return bad, ("[%d]%s"):format(i - 1, part or "") end
    end
  end
end
local function object(v)
  if type(v) ~= "table" or #v > 0 then return shown(v) .. ", want an object" end
end
local function text(least, most)
  return function(v)
    if type(v) ~= "string" or #v < least or #v > most then
      return ("%s, want a text of %d to %d bytes"):format(shown(v), least, most)
    end
  end
end
-- One, or a list or an object as `many` says it.
local function one_or(one, many)
  return function(v) return wrong(v, type(v) == "table" and many or one) end
end
local function name(v)
  if type(v) ~= "string" or #v > 64 or not v:find "^[%w_.-]+$" then
    return shown(v) .. ", want 1 to 64 letters, digits and _ . -"
  end
end
local stop_text = text(1, 1024)
local ids = list_of(whole(0), 2 ^ 22)
local function any() end

-- Of the client: they change no answer, and may be said to everything.
local notes = { user = "string", safety_identifier = "string", prompt_cache_key = "string", session_id = "string",
  metadata = object }
-- Of everything that is computed.
local work = { model = "string", cache_salt = text(1, 256), priority = whole(-2 ^ 31 + 1, 2 ^ 31 - 1),
  add_special_tokens = "boolean" }
-- Of texts.
local answer = { max_tokens = whole(0), temperature = number(0, 100), top_p = number(1e-6, 1),
  n = whole(1, M.MAX_CHOICES), stream = "boolean", stream_options = object,
  stop = one_or(stop_text, list_of(stop_text, M.MAX_STOPS)), presence_penalty = number(-2, 2),
  frequency_penalty = number(-2, 2), logit_bias = object, seed = whole(-2 ^ 53, 2 ^ 53),
  -- beyond OpenAI's
  top_k = whole(-1), min_p = number(0, 1), repetition_penalty = number(0.01, 100),
  stop_token_ids = list_of(whole(0), M.MAX_LIST), include_stop_str_in_output = "boolean", ignore_eos = "boolean",
  min_tokens = whole(0), request_id = name }
local function fields(t, ...)
  for _, more in ipairs { notes, ... } do
    for k, want in pairs(more) do t[k] = want end
  end
  return t
end
--- What the body of each kind may say.
M.fields = {
  completion = fields({ prompt = any, logprobs = whole(0, 20), echo = "boolean" }, work, answer),
  chat = fields({ messages = any, max_completion_tokens = whole(0), logprobs = "boolean", top_logprobs = whole(0, 20),
    tools = list_of(object, M.MAX_LIST), tool_choice = one_or("string", object), chat_template_kwargs = object,
    add_generation_prompt = "boolean", continue_final_message = "boolean" }, work, answer),
  embedding = fields({ input = any, encoding_format = { float = true, base64 = true }, dimensions = whole(1) }, work),
  tokenize = fields { model = "string", prompt = "string", content = "string", text = "string",
    add_special_tokens = "boolean", add_special = "boolean", parse_special = "boolean" },
  detokenize = fields { model = "string", tokens = ids },
}

-- Known, and honoured in these values alone, where it is no field of the kind: a request that says anything else has to
-- hear that it is not done.
local function is(...)
  local set = {}
  for _, v in ipairs { ... } do set[v] = true end
  return function(v) return set[v] end
end
local function empty(v) return type(v) == "table" and next(v) == nil end
local never = function() return false end
M.neutral = { response_format = function(v) return type(v) == "table" and v.type == "text" end,
  reasoning_effort = never, functions = empty, function_call = is "none", audio = never, prediction = never,
  modalities = function(v) return type(v) == "table" and #v == 1 and v[1] == "text" end, web_search_options = never,
  moderation = never, prompt_cache_retention = is "in_memory",
  prompt_cache_options = function(v)
    return empty(v) or type(v) == "table" and v.mode == "implicit" and v.ttl == nil
  end,
  store = is(false), service_tier = is("auto", "default"), verbosity = never, suffix = is "", prompt_logprobs = never,
  allowed_token_ids = never, bad_words = empty, truncate_prompt_tokens = never, structured_outputs = never,
  guided_json = never, guided_regex = never, guided_choice = never, guided_grammar = never, grammar = never,
  json_schema = never, skip_special_tokens = is(true), spaces_between_special_tokens = is(true), chat_template = never,
  documents = empty, use_beam_search = is(false), length_penalty = is(1), early_stopping = is(false),
  logits_processors = empty, logits_processor_pattern = never, return_token_ids = is(false),
  return_tokens_as_token_ids = is(false), return_token_strs = is(false), with_pieces = is(false), echo = is(false),
  best_of = function(v, body) return v == (body.n ~= null and body.n or 1) end, mm_processor_kwargs = never,
  media_io_kwargs = never, kv_transfer_params = never, vllm_xargs = empty, prompt_embeds = never,
  enable_response_messages = is(false), include_reasoning = is(true), thinking_token_budget = never,
  truncation_side = never, repetition_detection = never, embed_dtype = is "float32",
  endianness = is("native", "little"), use_activation = never, additional_data = never, normalize = is(true),
  parallel_tool_calls = is(true, false), tools = empty, tool_choice = is("none", "auto"), stream = is(false), n = is(1),
  logprobs = is(false) }

local known = {} -- of texts and embeddings: in a body of another kind these are no fields that nobody knows
for _, kind in ipairs { "completion", "chat", "embedding" } do
  for k in pairs(M.fields[kind]) do known[k] = true end
end
for k in pairs(M.neutral) do known[k] = true end

--- The fields of a body that are known, checked. null is as good as absent.
local function read(kind, body)
  local out, names = {}, {}
  for k in pairs(body) do names[#names + 1] = tostring(k) end
  table.sort(names) -- the same complaint every time
  for _, k in ipairs(names) do
    local v, want, neutral = body[k], M.fields[kind][k], M.neutral[k]
    if v == null then v = nil end
    if v ~= nil and want then
      local bad, part = wrong(v, want)
      if bad then refuse(("%s%s: %s"):format(k, part or "", bad), k) end
      out[k] = v
    elseif v ~= nil and known[k] and not (neutral and neutral(v, body)) then
      refuse(("%s: not supported, or not in this value"):format(k), k, "unsupported_parameter")
    end
  end
  return out
end

local function check_model(f, model)
  if f.model and f.model ~= model.name then
    error(M.refusal(("the model '%s' does not exist"):format(#f.model > 100 and f.model:sub(1, 100) or f.model),
      { status = 404, param = "model", code = "model_not_found" }), 0)
  end
end

-- Token ids that end an answer. Where all do, and none may yet, no token is left to choose.
local function stops_of(f, model)
  local stops, seen, n = f.ignore_eos and {} or { unpack(model.stops) }, {}, 0
  for i, id in ipairs(f.stop_token_ids or {}) do
    if id >= model.vocab then
      refuse(("stop_token_ids[%d]: %d, want an id below %d"):format(i - 1, id, model.vocab), "stop_token_ids")
    end
    stops[#stops + 1] = id
  end
  for _, id in ipairs(stops) do
    if not seen[id] then seen[id], n = true, n + 1 end
  end
  if n == model.vocab and (f.min_tokens or 0) > 0 then
    refuse("stop_token_ids: every token ends the answer, and min_tokens wants one that does not", "stop_token_ids")
  end
  return stops
end

-- What requests for texts have in common: the options of the engine, and of the answer. most: tokens of one that says
-- nothing; nil: what there is room for.
local function options_of(f, model, most)
  check_model(f, model)
  local stream = f.stream_options or {}
  if f.stream_options and not f.stream then refuse("stream_options: only with stream", "stream_options") end
  for k, v in pairs(stream) do
    if v ~= null and v ~= false and not (k == "include_usage" and v == true) and
      (k == "include_usage" or k == "continuous_usage_stats" or k == "include_obfuscation") then
      refuse(("stream_options.%s: not supported, or not in this value"):format(k), "stream_options")
    end
  end
  local bias, n = {}, 0
  for k, v in pairs(f.logit_bias or {}) do
    local id = tostring(k):match "^%d+$" and tonumber(k)
    n = n + 1
    if not id or id >= model.vocab then
      refuse(("logit_bias: '%s', want a token id below %d"):format(tostring(k):sub(1, 40), model.vocab), "logit_bias")
    end
    local bad = wrong(v, number(-100, 100))
    if bad then refuse(("logit_bias['%d']: %s"):format(id, bad), "logit_bias") end
    bias[id] = v
  end
  if n > M.MAX_LIST then refuse(("logit_bias: %d entries, want at most %d"):format(n, M.MAX_LIST), "logit_bias") end
  most = f.max_completion_tokens or f.max_tokens or most
  if f.min_tokens and most and f.min_tokens > most then
    refuse(("min_tokens: %d, want at most max_tokens, which is %d"):format(f.min_tokens, most), "min_tokens")
  end
  local engine = { temperature = f.temperature or 1, top_p = f.top_p or 1, min_p = f.min_p or 0,
    top_k = math.max(f.top_k or 0, 0), repetition_penalty = f.repetition_penalty,
    presence_penalty = f.presence_penalty, frequency_penalty = f.frequency_penalty, min_tokens = f.min_tokens,
    logit_bias = bias, stop = stops_of(f, model), cache_salt = f.cache_salt, priority = -(f.priority or 0) }
  return { engine = engine, n = f.n or 1, stream = f.stream or false, usage = stream.include_usage == true,
    stops = type(f.stop) == "string" and { f.stop } or f.stop or {}, seed = f.seed and f.seed % 2 ^ 53,
    keep_stop = f.include_stop_str_in_output, min_tokens = f.min_tokens or 0, max_tokens = most,
    bos = f.add_special_tokens ~= false, name = f.request_id }
end

--- How a prompt or an input is called: the i-th of a list, unless it is the whole field itself.
function M.place(field, o, i) return o.single and field or ("%s[%d]"):format(field, i - 1) end

-- Prompts of a completion, or inputs: a text, texts, ids, or lists of ids, as a list of texts or lists of ids; single:
-- the field is one prompt. field: its name.
local function prompts_of(v, field, model)
  local list = list_of(whole(0, model.vocab - 1), 2 ^ 22)
  if type(v) == "string" then return { v }, true end
  if type(v) ~= "table" or #v == 0 then
    refuse(("%s: %s, want a text, a list of texts, ids, or a list of lists of ids"):format(field, shown(v)), field)
  end
  local single = type(v[1]) == "number"
  for i, p in ipairs(single and { v } or v) do
    local bad, part
    if type(v[1]) == "string" then
      bad = type(p) ~= "string" and shown(p) .. ", want a text" or nil
    elseif i == 1 and not single and type(p) ~= "table" then
      bad = shown(p) .. ", want a text or a list of ids"
    else
      bad, part = list(p)
    end
    if bad then refuse(M.place(field, { single = single }, i) .. (part or "") .. ": " .. bad, field) end
  end
  return single and { v } or v, single
end

--- A body of /v1/completions: { prompts, n, stream, usage, stops, echo, logprobs, engine = options, ... }.
function M.completion(body, model)
  local f = read("completion", body)
  if f.prompt == nil then refuse("prompt: missing", "prompt") end
  local o = options_of(f, model, 16)
  o.kind, o.echo = "completion", f.echo
  o.prompts, o.single = prompts_of(f.prompt, "prompt", model)
  if o.echo and f.logprobs then refuse("echo: not supported together with logprobs", "echo") end
  if #o.prompts * o.n > M.MAX_CHOICES then
    refuse(("prompt: %d prompts of %d answers each, want at most %d in all"):format(#o.prompts, o.n, M.MAX_CHOICES),
      "prompt")
  end
  o.logprobs = f.logprobs
  return o
end

--- Raises: the inputs of a request for embeddings, as far as they are counted, have too many tokens together.
function M.too_many_tokens(n, inputs)
  refuse(("input: %d tokens in %d inputs, want at most %d in all"):format(n, inputs, M.MAX_INPUT_TOKENS), "input")
end

--- A body of /v1/embeddings: { inputs, single, base64, engine = options, bos }.
function M.embedding(body, model)
  local f = read("embedding", body)
  if f.input == nil then refuse("input: missing", "input") end
  check_model(f, model)
  if not model.pooling then refuse "this model makes no embeddings: its recipe's forward returns logits alone" end
  if f.dimensions and f.dimensions > model.width then
    refuse(("dimensions: %d, the model makes %d"):format(f.dimensions, model.width), "dimensions")
  end
  local inputs, single = prompts_of(f.input, "input", model)
  if #inputs > M.MAX_INPUTS then
    refuse(("input: a list of %d, want at most %d"):format(#inputs, M.MAX_INPUTS), "input")
  end
  local n = 0
  for i, v in ipairs(inputs) do
    n = n + (type(v) == "table" and #v or 0)
    if n > M.MAX_INPUT_TOKENS then M.too_many_tokens(n, i) end
    if #v == 0 then refuse(M.place("input", { single = single }, i) .. ": empty, want at least a token", "input") end
  end
  return { kind = "embedding", inputs = inputs, single = single, base64 = f.encoding_format == "base64",
    bos = f.add_special_tokens ~= false, engine = { embed = model.pooling, dimensions = f.dimensions,
      cache_salt = f.cache_salt, priority = -(f.priority or 0) } }
end

local function content_of(c, where)
  if c == nil or c == null then return nil end
  if type(c) == "string" then return c end
  if type(c) ~= "table" or #c == 0 and next(c) ~= nil then
    refuse(("%s.content: %s, want a text or a list of parts"):format(where, shown(c)), "messages")
  end
  local out = {}
  for i, part in ipairs(c) do
    if type(part) ~= "table" or part.type ~= "text" or type(part.text) ~= "string" then
      refuse(("%s.content[%d]: only parts of type 'text' are supported"):format(where, i - 1), "messages")
    end
    out[i] = part.text
  end
  return table.concat(out, "\n")
end

--- A body of /v1/chat/completions; o.messages goes to the model's template.
function M.chat(body, model)
  local f = read("chat", body)
  local messages = f.messages
  if messages == nil then refuse("messages: missing", "messages") end
  if type(messages) ~= "table" or #messages == 0 then
    refuse(("messages: %s, want a list of messages"):format(shown(messages)), "messages")
  end
  for i, m in ipairs(messages) do
    local where = ("messages[%d]"):format(i - 1)
    if type(m) ~= "table" or type(m.role) ~= "string" then
      refuse(("%s: %s, want an object with a role"):format(where, shown(m)), "messages")
    end
    m.content = content_of(m.content, where)
    if type(m.tool_calls) == "table" and next(m.tool_calls) == nil then m.tool_calls = nil end
    if m.content == nil and (m.tool_calls == nil or m.tool_calls == null) then
      refuse(where .. ".content: missing", "messages")
    end
  end
  if f.top_logprobs and not f.logprobs then refuse("top_logprobs: only with logprobs", "top_logprobs") end
  if f.tools and #f.tools > 0 and f.tool_choice ~= "none" then
    refuse("tools: calls are not supported yet, want tool_choice 'none'", "tools", "unsupported_parameter")
  end
  if f.tool_choice and f.tool_choice ~= "none" and f.tool_choice ~= "auto" then
    refuse("tool_choice: calls are not supported yet", "tool_choice", "unsupported_parameter")
  end
  if f.continue_final_message and f.add_generation_prompt then
    refuse("continue_final_message: not with add_generation_prompt", "continue_final_message")
  end
  if f.max_tokens and f.max_completion_tokens and f.max_tokens ~= f.max_completion_tokens then
    refuse("max_tokens: not the same as max_completion_tokens", "max_tokens")
  end
  local o = options_of(f, model)
  o.kind, o.messages, o.template = "chat", messages, f.chat_template_kwargs ~= nil
  o.single, o.bos, o.tools = true, f.add_special_tokens == true, f.tools and #f.tools > 0 or nil
  o.generation_prompt = not f.continue_final_message and f.add_generation_prompt ~= false
  o.continues = f.continue_final_message
  if f.logprobs then o.logprobs = f.top_logprobs or 0 end
  return o
end

--- A body of /tokenize: { text, bos, specials }.
function M.tokenize(body, model)
  local f = read("tokenize", body)
  check_model(f, model)
  local field = f.prompt and "prompt" or f.content and "content" or "text"
  if not f[field] then refuse("prompt: missing", "prompt") end
  for _, other in ipairs { "content", "text" } do
    if other ~= field and f[other] then refuse(("%s: not beside %s"):format(other, field), other) end
  end
  return { text = f[field], specials = f.parse_special == true,
    bos = f.add_special_tokens ~= false and f.add_special ~= false }
end

--- A body of /detokenize: the ids.
function M.detokenize(body, model)
  local f = read("detokenize", body)
  check_model(f, model)
  if not f.tokens then refuse("tokens: missing", "tokens") end
  for i, id in ipairs(f.tokens) do
    if id >= model.vocab then
      refuse(("tokens[%d]: %d, want an id below %d"):format(i - 1, id, model.vocab), "tokens")
    end
  end
  return f.tokens
end

-- Answers --------------------------------------------------------------------------------------------------

local function finish_of(choice) return choice.finish or json.null end

function M.usage_of(job)
  return { prompt_tokens = job.prompt_tokens, completion_tokens = job.completion_tokens,
    total_tokens = job.prompt_tokens + job.completion_tokens,
    prompt_tokens_details = { cached_tokens = job.cached_tokens },
    completion_tokens_details = { reasoning_tokens = 0 } }
end

-- logprobs of chat: of each token its bytes, so that texts that span tokens can be put together
local function chat_logprobs(list)
  if not list then return json.null end
  local content = json.list {}
  local function entry(t) return { token = t.text, bytes = json.list { t.bytes:byte(1, -1) }, logprob = t.logprob } end
  for i, t in ipairs(list) do
    content[i] = entry(t)
    content[i].top_logprobs = json.list {}
    for k, other in ipairs(t.top) do content[i].top_logprobs[k] = entry(other) end
  end
  return { content = content, refusal = json.null }
end

local function completion_logprobs(list, offset)
  if not list then return json.null end
  local out = { tokens = json.list {}, token_logprobs = json.list {}, top_logprobs = json.list {},
    text_offset = json.list {} }
  for i, t in ipairs(list) do
    out.tokens[i], out.token_logprobs[i], out.text_offset[i] = t.text, t.logprob, offset
    local top = { [t.text] = t.logprob }
    for _, other in ipairs(t.top) do top[other.text] = other.logprob end
    out.top_logprobs[i] = top
    local _, n = t.text:gsub("[^\128-\191]", "")
    offset = offset + n
  end
  return out, offset
end

local function envelope(job, object_name, choices)
  return { id = job.name, object = object_name, created = job.created, model = job.model, choices = json.list(choices),
    system_fingerprint = job.fingerprint }
end

-- The answer with a request's embeddings: each input's is JSON already.
local function embeddings(job)
  local data = json.list {}
  for i, c in ipairs(job.choices) do
    data[i] = { object = "embedding", index = i - 1, embedding = json.raw(c.written) }
  end
  return { object = "list", data = data, model = job.model,
    usage = { prompt_tokens = job.prompt_tokens, total_tokens = job.prompt_tokens } }
end

--- The whole answer.
function M.answer(job)
  if job.o.kind == "embedding" then return embeddings(job) end
  local choices = {}
  for i, c in ipairs(job.choices) do
    local parts, lps = {}, job.o.logprobs and {} or nil
    for k, piece in ipairs(c.pieces) do
      parts[k] = piece.text
      for _, t in ipairs(piece.logprobs or {}) do lps[#lps + 1] = t end
    end
    local said = table.concat(parts)
    choices[i] = { index = i - 1, finish_reason = finish_of(c) }
    if job.o.kind == "chat" then
      choices[i].message = { role = "assistant", content = said, refusal = json.null }
      choices[i].logprobs = chat_logprobs(lps)
    else
      choices[i].text = said
      choices[i].logprobs = completion_logprobs(lps, 0)
    end
  end
  local out = envelope(job, job.o.kind == "chat" and "chat.completion" or "text_completion", choices)
  out.usage = M.usage_of(job)
  return out
end

local function frame(t) return "data: " .. json.encode(t) .. "\n\n" end
M.DONE = "data: [DONE]\n\n"

local function chunk(job, choice)
  local out = envelope(job, job.o.kind == "chat" and "chat.completion.chunk" or "text_completion", { choice })
  if job.o.usage then out.usage = json.null end
  return frame(out)
end

local function delta(job, c, d, logprobs, finish)
  return chunk(job, { index = c.index, delta = d, logprobs = chat_logprobs(logprobs),
    finish_reason = finish or json.null })
end

--- The frames that a stream begins with.
function M.first_frames(job)
  local out = {}
  if job.o.kind ~= "chat" then return "" end
  for i, c in ipairs(job.choices) do out[i] = delta(job, c, { role = "assistant", content = "" }) end
  return table.concat(out)
end

--- The frame of one piece of a choice's text.
function M.piece_frame(job, c, piece)
  if job.o.kind == "chat" then return delta(job, c, { content = piece.text }, piece.logprobs) end
  local lps
  lps, c.offset = completion_logprobs(piece.logprobs, c.offset or 0)
  return chunk(job, { index = c.index, text = piece.text, logprobs = lps, finish_reason = json.null })
end

--- The frame that ends a choice.
function M.finish_frame(job, c)
  if job.o.kind == "chat" then return delta(job, c, {}, nil, c.finish) end
  return chunk(job, { index = c.index, text = "", logprobs = json.null, finish_reason = c.finish })
end

--- The frames that end a stream.
function M.last_frames(job)
  if not job.o.usage then return M.DONE end
  local out = envelope(job, job.o.kind == "chat" and "chat.completion.chunk" or "text_completion", {})
  out.usage = M.usage_of(job)
  return frame(out) .. M.DONE
end

function M.error_frame(refusal) return frame(M.error_body(refusal)) end

return M
