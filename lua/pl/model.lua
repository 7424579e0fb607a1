-- Models: pl.load(path) -> m:generate { prompt = "..." }, m:logits(...), m:score(...).
local abi, err, schema = require "pl.abi", require "pl.err", require "pl.schema"
local recipe, checkpoint, load, program, dev = require "pl.recipe", require "pl.checkpoint",
  require "pl.load", require "pl.program", require "pl.dev"
local arg, engine, tensor = require "pl.arg", require "pl.engine", require "pl.tensor"
local cache, sym = require "pl.cache", require "pl.sym"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local Model = {}
Model.__index = Model

local whole = schema.whole
local fields = { recipe = "string", pool = "string", weights = "string", path = "string",
  progress = "function" }
for k, want in pairs(require("pl.pool").fields) do if k ~= "weights" then fields[k] = want end end

--- Read a model's metadata and trace its recipe; no weights yet. path: a GGUF file, a Hugging Face directory, a packed
--- file, or a recipe file with o.weights. o: recipe, pool (of the recipe; default: the first by name), path (of the
--- CPU), progress, and what a pool may say: act, kv, batch, tokens, context, cache_bytes, host_cache_bytes, disk_cache,
--- disk_cache_bytes, queue, prefix, threads ...
function M.open(path, o)
  o = schema.check("load", fields, o or {})
  local started = C.pl_now_s()
  local file = path
  local is_recipe = path:find "%.lua$" or o.weights and require("pl.recipes.text")[path]
  if is_recipe then
    if path:find "%.lua$" then checkpoint.need(path) end
    if path:find "%.lua$" and require("pl.deploy").is(path) then
      err.raise(('%s is no recipe: it does not require "pl"'):format(path),
        { "want a recipe or a model; deployment files are for serve, check and plan" })
    elseif not o.weights then
      err.raise(("%s is a recipe: it needs weights"):format(path),
        { "with  --weights MODEL, or pl.load(path, { weights = MODEL })" })
    elseif o.recipe then
      err.raise(("recipe: %s, but %s is a recipe itself"):format(o.recipe, path))
    end
    file, o.recipe = o.weights, path
  elseif o.weights then
    err.raise(("weights: %s, but %s is no recipe: want one of both"):format(o.weights, path),
      { "a recipe (FILE.lua) goes with the weights that it describes" })
  end
  local c = checkpoint.open(file)
  if c.packed and not o.act then -- what it was packed for, unless another is wanted
    local act = c.value "perilune.act"
    o.act = type(act) == "string" and act or nil
  end
  if c.packed and not o.recipe then o.recipe = require("pl.pack").recipe_of(c) end
  rawset(c, "recipe", o.recipe or false) -- the one that was asked for
  local r = o.recipe and recipe.load(o.recipe) or recipe.find(c)
  local fitted = recipe.fit(r, c)
  local trace, pool = recipe.trace(fitted, o.pool, o)
  local infos = load.check(fitted, trace, c)
  return setmetatable({ file = file, options = o, started = started, checkpoint = c, recipe = r,
    fitted = fitted, trace = trace,
    pool = pool, infos = infos, d = fitted.dims, name = r.name }, Model)
end

-- A value of numbers, texts and tables of these as a text, the same for the same values.
local function written(v)
  if type(v) == "number" then return ("%.17g"):format(v) end
  if type(v) ~= "table" then return tostring(v) end
  local out = {}
  for k, x in next, v do out[#out + 1] = tostring(k) .. "=" .. written(x) end
  table.sort(out)
  return "{" .. table.concat(out, ",") .. "}"
end

-- What decides the numbers in a page of the cache, beside its layout. Reads all weights: only a disk cache needs it.
local function identity(self)
  local digest, pool = abi.new "uint64_t[2]", self.pool
  C.pl_ckpt_digest(self.checkpoint.ptr, 2 ^ 62, digest)
  return table.concat({ tostring(digest[0]), tostring(digest[1]), pool.act, written(pool.weights),
    written(self.fitted.dims), self.recipe.text }, "\n")
end

-- Bytes of weights from which on memory sets the pace of a step of few tokens: no cache holds them.
M.LARGE = 2 ^ 30

local function is_large(self)
  local bytes = 0
  for _, w in ipairs(self.trace.used) do bytes = bytes + self.infos[w.weight].bytes end
  return bytes >= M.LARGE
end

--- Load the weights and get ready to compute. Where nobody says how many threads, those of a large model are measured.
---   context: tokens of cache per sequence (default: the model's, at most 4096)
function Model:start(context)
  local o, pool = self.options, self.pool
  self.context = cache.context(self.fitted, pool, context)
  self.dev = (pool.threads > 0 or o.path) and dev.set { threads = pool.threads, path = o.path } or dev.get()
  if pool.threads == 0 and is_large(self) then self.dev:fit() end
  self.weights = load.run(self.fitted, self.trace, pool, self.checkpoint, self.dev, o.progress)
  pool.batch = math.min(pool.batch, pool.tokens)
  self.prog = program.build(self.trace, self.weights, self.dev, pool.tokens, pool.batch)
  self.engine = engine.open { dev = self.dev, prog = self.prog, cache = self.fitted.cache, pool = pool,
    context = self.context, vocab = self.trace.vocab, schedule = self.recipe.schedule, box = self.recipe.box,
    integrity = self.recipe.integrity, identity = pool.disk_cache and identity(self) or nil,
    weights_id = pool.kv_scales and self.checkpoint.identity() }
  self.engine.name = self.name
  if self.checkpoint.packed then check(C.pl_ckpt_settle(self.checkpoint.ptr, e)) end
  self.load_s = C.pl_now_s() - self.started
  return self
end

--- Calibrated scales that the pool wants: are they there, and for these weights? Raises what is wrong.
function Model:check_scales()
  cache.scales_of(self.fitted.cache, self.pool, self.pool.kv_scales and self.checkpoint.identity())
end

function M.load(path, o) return M.open(path, o):start() end

--- The tokenizer, opened when first asked for.
function Model:tokenizer()
  if not self.tok then self.tok = require("pl.tokenizer").open(self.file, self.checkpoint) end
  return self.tok
end

--- The model's chat template (see pl.chat), read when first asked for: a model whose template has an error still runs
--- on plain prompts, and the error, with the template's line, is raised here.
function Model:chat_template()
  if not self.chat then self.chat = require("pl.chat").open(self.file, { checkpoint = self.checkpoint }) end
  return self.chat
end

--- A prompt from messages: o.messages, o.tools, o.add_generation_prompt, and what else the template knows. Messages go
--- through template.prepare first. Raises what the template raises.
function Model:render(o) return self:chat_template():prompt(o) end

--- A conversation with the model, by its chat template: m:talk { system = "...", temperature = ... }:say "Hello" (see
--- pl.talk).
function Model:talk(o)
  local all = { model = self }
  for k, v in pairs(o or {}) do all[k] = v end
  return require("pl.talk").new(all)
end

--- Ids of a prompt: a text (with what the model expects in front), or a list of ids as it is.
function Model:ids(prompt)
  if type(prompt) == "table" then return prompt end
  return self:tokenizer():encode(prompt, { bos = true })
end

--- Ids that end an answer: the metadata's and the tokenizer's together.
function Model:stops()
  if self.stop_ids then return self.stop_ids end
  local seen, out, c = {}, {}, self.checkpoint
  local function add(v)
    if type(v) == "table" then
      for _, x in ipairs(v) do add(x) end
    elseif type(v) == "number" and v >= 0 and v < self.trace.vocab and not seen[v] then
      seen[v] = true
      out[#out + 1] = v
    end
  end
  if c.format == "gguf" then
    for _, k in ipairs { "eos", "eot", "eom" } do add(c.value("tokenizer.ggml." .. k .. "_token_id")) end
  else
    add(c.value "generation_config.eos_token_id")
    add(c.value "eos_token_id")
  end
  local ok, tok = pcall(self.tokenizer, self)
  if ok then add(tok.eos) end
  self.stop_ids = out
  return out
end

local ids_list = schema.list(schema.whole(0))
--- A text or a list of ids.
local function text_or_ids(v)
  if type(v) == "string" then return nil end
  if type(v) ~= "table" then return schema.show(v) .. ", want a text or a list of ids" end
  return ids_list(v)
end
local own = { prompt = text_or_ids, ignore_eos = "boolean", stream = "function" }
local generate_fields = {}
for k, v in pairs(engine.request_fields) do if type(k) == "string" then generate_fields[k] = v end end
for k, v in pairs(own) do generate_fields[k] = v end

-- Bytes from which on the prompt of a request is tokenised beside the engine: below, the way there costs more.
M.long_text = 2048

-- at_once: a long prompt is tokenised here and now.
local function submit(self, o, at_once)
  o = schema.check("generate", generate_fields, o)
  local r = {}
  for k, v in pairs(o) do if not own[k] then r[k] = v end end
  local what = o.embed and "embed" or "generate"
  if (o.ids == nil) == (o.prompt == nil) then err.raise(what .. ": want one of prompt and ids") end
  if o.embed and not self.trace.hidden then
    err.raise("embed: the recipe's forward returns logits alone", { "nn.logits(x, w, kv, d) returns both" })
  end
  local later = type(o.prompt) == "string" and #o.prompt >= M.long_text
    and self.pool.fronts > 0 and not at_once
  if not later then r.ids = o.ids or self:ids(o.prompt) end
  if not o.stop and not o.ignore_eos then r.stop = self:stops() end
  local text
  if o.stream then
    text = self:tokenizer():stream()
    r.on_token = function(id)
      if o.on_token then o.on_token(id) end
      local s = text(id)
      if #s > 0 then o.stream(s) end
    end
  end
  r.max_tokens = o.embed and 0 or o.max_tokens or 256
  local request, code
  if later then
    request, code = self.engine:submit(r, o.prompt, self:tokenizer())
  else
    local why
    r.max_tokens, why = engine.room(self.context, #r.ids, r.max_tokens)
    if why then err.raise(what .. ": " .. why) end
    request, code = self.engine:submit(r)
  end
  if not request then err.raise(("%s: no room for another request (%s)"):format(what, code), nil, code) end
  request.flush = text and function()
    local s = text(nil)
    if #s > 0 then o.stream(s) end
  end
  return request
end

--- Submit a request without waiting: o as in generate, or with embed = "last" or "mean" (see m:embed). m:step() then
--- does one step for all open requests. A long prompt is tokenised meanwhile: what is wrong with it is the request's
--- own `error`, with finish "error".
function Model:submit(o) return submit(self, o) end

function Model:step()
  local within = M.generating
  M.generating = true -- the REPL's hook would break off a step in the middle, and its events would be lost
  local fine, r = pcall(self.engine.step, self.engine)
  M.generating = within
  if not fine then error(r, 0) end
  if not within and C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
  return r
end

-- Steps until a request is over; Ctrl-C cancels it.
local function finish(self, r, what)
  M.generating = true -- Ctrl-C is taken here, not by the REPL's hook
  local fine, why = pcall(function()
    while not r.finish do
      if C.pl_host_interrupted(true) then self.engine:cancel(r) else self.engine:step() end
    end
  end)
  M.generating = false
  if not fine then
    if self.engine and not r.finish then self.engine:cancel(r) end
    error(why, 0)
  end
  if r.error then err.raise(what .. ": " .. r.error) end
  return r
end

--- Generate: { prompt = text or ids, max_tokens =, temperature =, top_p =, top_k =, min_p =, seed =, stop = {
--- ids }, ignore_eos =, repetition_penalty =, presence_penalty =, frequency_penalty =, logit_bias = { [id] =
--- x }, logprobs =, stream = function(text) }. Returns { text, ids, finish, prompt_tokens, cached_tokens (of these,
--- found in the prefix cache), prefill_s, decode_s, logprobs }, which prints as its text. Ctrl-C ends it early, with
--- finish "cancelled".
function Model:generate(o)
  if type(o) == "string" then o = { prompt = o } end
  if o.embed then err.raise "generate: embed is for m:submit; m:embed(prompt) makes an embedding" end
  local alone = self.engine.n_open == 0 -- nobody else to wait for it
  local r = finish(self, submit(self, o, alone), "generate")
  if r.flush then r.flush() end
  local ok, tok = pcall(self.tokenizer, self)
  return setmetatable({ text = ok and tok:decode(r.ids) or nil, ids = r.ids, finish = r.finish,
    prompt_tokens = r.prompt_tokens, cached_tokens = math.min(r.n_cached or 0, r.prompt_tokens),
    logprobs = r.logprobs, prefill_s = r.first_s - r.submitted_s, decode_s = r.last_s - r.first_s },
      { __tostring = function(g) return g.text or table.concat(g.ids, ",") end })
end

local embed_fields = { pooling = { last = true, mean = true }, dimensions = whole(1) }
--- The embedding of a text or of a list of ids: a tensor [D] of length 1. o.pooling: "last" (the hidden states of the
--- last token, after the last norm) or "mean" (of all); default: the recipe's `pooling`, or "last". o.dimensions: the
--- first so many values, made to have length 1 again. For several at once: m:submit { prompt =, embed = "last" } each;
--- a request that is over has its `embedding`.
function Model:embed(prompt, o)
  o = schema.check("embed", embed_fields, o or {})
  local kind = o.pooling or self:pooling() or "last"
  local r = finish(self, submit(self, { ids = self:ids(prompt), embed = kind, dimensions = o.dimensions }), "embed")
  if not r.embedding then err.raise(("embed: the request ended: %s"):format(r.finish), nil, "ECANCEL") end
  return r.embedding
end

--- What the model's embeddings are made of, "last" or "mean"; nil where its recipe's forward returns no hidden states.
function Model:pooling() return self.trace.hidden and (self.recipe.pooling or "last") or nil end

-- Runs ids through the model in a sequence of its own, in chunks of at most `chunk` tokens. rows(from, n)
-- says how many of a chunk's last rows are wanted; see(row, logits) gets each as float *, row counted from 0
-- in ids. after(seq) is called while the sequence is still in the cache.
local function run_rows(self, ids, chunk, rows, see, after)
  if #ids == 0 then err.raise "the prompt is empty" end
  if #ids > self.context then err.raise(("%d tokens, the cache has room for %d"):format(#ids,
    self.context)) end
  for i, id in ipairs(ids) do
    if id >= self.trace.vocab then
      err.raise(("token %d is %s, want an id below %d"):format(i, tostring(id), self.trace.vocab))
    end
  end
  local kv, seq, span, b = self.engine.kv, abi.new "int32_t[1]", abi.new "pl_span[1]", abi.new "pl_batch"
  local result = abi.new "pl_tensor[1]" -- borrowed: no finalizer
  C.pl_engine_make_room(self.engine.ptr, math.ceil(#ids / self.engine.page))
  check(C.pl_kv_seq_new(kv, 0, seq, e))
  local ok, what = pcall(function()
    local all = abi.array("int32_t", ids)
    local V, logits, room = self.trace.vocab, nil, 0 -- a copy: the NaNs of the result are as the file made them
    for from = 0, #ids - 1, chunk do
      if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
      local n = math.min(chunk, #ids - from)
      local want = rows(from, n)
      local list = abi.new("int32_t[?]", math.max(want, 1))
      for i = 0, want - 1 do list[i] = n - want + i end
      span[0].seq, span[0].n = seq[0], n
      b.ids, b.rows, b.span, b.n_tokens, b.n_rows, b.n_spans = all + from, list, span, n, want, 1
      local fine, code = check(C.pl_prog_run(self.prog.ptr, kv, b, result, e))
      if not fine then err.raise(("the cache has no room for %d tokens (%s)"):format(#ids, code), nil,
        code) end
      if fine > 0 then err.raise("a page of the cache was given to someone else", nil, "ETAG") end
      if want > room then logits, room = abi.array("float", want * V), want end
      if want > 0 then check(C.pl_tensor_get_f32(result[0], logits, want * V, e)) end
      for i = 0, want - 1 do see(from + n - want + i, logits + i * V) end
    end
  end)
  if ok and after then ok, what = pcall(after, seq[0]) end
  C.pl_kv_seq_free(kv, seq[0])
  if not ok then error(what, 0) end
end

--- Logits after the last token of a text or of a list of ids: a tensor [V]; with n, after each of the last n: [n,V].
function Model:logits(prompt, n)
  local ids, V, y = self:ids(prompt), self.trace.vocab, nil
  if n and n > #ids then err.raise(("logits: of the last %d tokens, the prompt has %d"):format(n, #ids)) end
  local first = #ids - (n or 1)
  run_rows(self, ids, n and self.pool.batch or self.pool.tokens, function(from, count)
    return math.max(0, math.min(count, from + count - first))
  end, function(row, logits)
    y = y or tensor.empty(n and { n, V } or { V })
    abi.copy(abi.cast("float *", y.data) + (row - first) * V, logits, V * 4)
  end)
  return y
end

-- The k largest of n logits, [[id, logit], ...], descending; the lower id first where they are equal.
local function top_of(logits, n, k)
  local list = {}
  for id = 0, n - 1 do
    local v = logits[id]
    local last = list[k]
    if not last or v > last[2] then
      local at = math.min(#list, k - 1)
      while at >= 1 and list[at][2] < v do
        list[at + 1] = list[at]
        at = at - 1
      end
      list[at + 1] = { id, v }
    end
  end
  return list
end

--- How likely a text (or a list of ids) is: { tokens, nll = mean nats over tokens 2..n (nil for one token),
--- nlls, top = { { id, logit }, ... } after the last token, logsumexp of the logits there }.
function Model:score(prompt, k)
  local ids, V = self:ids(prompt), self.trace.vocab
  local r, sum = { tokens = ids, nlls = {} }, 0
  run_rows(self, ids, self.pool.batch, function(_, n) return n end, function(row, logits)
    local lse = C.pl_logsumexp(logits, V)
    local target = ids[row + 2]
    if target then
      r.nlls[row + 1] = lse - logits[target]
      sum = sum + r.nlls[row + 1]
    else
      r.logsumexp, r.top = lse, top_of(logits, V, math.min(k or 20, V))
    end
  end)
  if #ids > 1 then r.nll = sum / (#ids - 1) end
  return r
end

--- Scales of an fp8 cache from what a text (or a list of ids) makes of keys and values, run in sequences of `window`
--- tokens; the model's own cache has to be f32. Returns { layers, heads, key, value } (see `perilune calibrate`), and
--- the number of tokens.
function Model:calibrate(prompt, window)
  local ids, c = self:ids(prompt), self.fitted.cache
  if #ids == 0 then err.raise "calibrate: the prompt is empty" end
  local scales = { model = self.name, weights_id = self.checkpoint.identity(), layers = c.layers, heads = c.heads,
    tokens = #ids, key = {}, value = {} }
  window = math.min(window or 2048, self.context)
  for from = 1, #ids, window do
    local part = {}
    for i = from, math.min(from + window - 1, #ids) do part[#part + 1] = ids[i] end
    run_rows(self, part, self.pool.tokens, function() return 0 end, nil, function(seq)
      cache.measure(self.engine.kv, seq, c, scales)
    end)
  end
  return scales, #ids
end

--- Another policy from the next step on: a name, a file that returns a function(s), or such a function, which may use
--- what the session has (while it is there, the session runs uncompiled).
function Model:set_policy(p) self.engine:set_policy(p) end
--- Records of pages that a step found in other hands, the oldest first, at most the last 100: { request =, page =,
--- index = (in its block table), state =, expected =, found = (tags), owners = { { owner =, tag = }, ... } (newest
--- first), step =, recipe = }.
function Model:incidents()
  local out = {}
  for i, r in ipairs(self.engine.incidents) do out[i] = r end
  return out
end
--- Counters since the model was loaded.
function Model:metrics() return self.engine:metrics() end

local prof_fields = { "steps", steps = whole(0, 2 ^ 20) }
--- The step trace. m:prof { steps = n }: the last n steps are kept from now on (0: off). m:prof(): those that are kept
--- (see pl.prof): it prints as a summary; it has steps, summary(), chrome(), save(file).
function Model:prof(o)
  if not o then return require("pl.prof").read(self.engine.ptr, self.prog.ptr, self.name, self.recipe.file) end
  self.engine:between_steps "prof"
  check(C.pl_engine_trace(self.engine.ptr, schema.check("prof", prof_fields, o).steps, e))
end

--- The weights as real tensors, in the recipe's own tree, for eager calls; packed ones print their shape
--- only.
function Model:tree()
  local function walk(t)
    local out = {}
    for k, v in next, t do
      local s = sym.of(v)
      if s then out[k] = self.weights[s] else out[k] = walk(v) end
    end
    return out
  end
  return walk(self.fitted.weights)
end

--- A cache for eager calls (see pl.kv).
function Model:kv(context)
  local c = self.fitted.cache
  return require("pl.eager").kv { layers = c.layers, heads = c.heads, key_dim = c.key_dim,
    value_dim = c.value_dim, page = c.page,
    context = context or 512, dtype = self.pool.kv }
end

--- What it takes: figures as `perilune plan` prints them.
function Model:plan()
  return require("pl.plan").figures(self.fitted, self.trace, self.pool, self.infos, self.context)
end

local Closed = arg.closed "model"

--- Give everything back now, in order; the device stays open for other tensors.
function Model:close()
  if self.engine then self.engine:close() end
  if self.prog then self.prog:close() end
  for _, t in pairs(self.weights or {}) do t:close() end
  if self.tok then self.tok:close() end
  self.checkpoint:close()
  self.engine, self.prog, self.weights, self.tok = nil, nil, nil, nil
  setmetatable(self, Closed)
end

Model.__tostring = function(m)
  return ("model '%s': %d layers, %s wide, %d tokens, from %s (act %s)"):format(m.name, m.fitted.cache.layers,
    tostring(rawget(m.d, "dim")), m.trace.vocab, m.file, m.pool.act)
end

arg.functions("pl", M, { open = { "path", "string", "o?", "table" }, load = { "path", "string", "o?", "table" } })
arg.methods("m", Model, arg.object("model", Model, Closed), {
  start = { "context?", whole(1) }, check_scales = {}, tokenizer = {}, chat_template = {}, render = { "o", "table" },
  talk = { "o?", "table" }, ids = { "prompt", text_or_ids }, stops = {}, step = {},
  submit = { "o", "table" }, generate = { "o", "table|string" }, embed = { "prompt", text_or_ids, "o?", "table" },
  pooling = {}, logits = { "prompt", text_or_ids, "n?", whole(1) },
  score = { "prompt", text_or_ids, "k?", whole(1) }, calibrate = { "prompt", text_or_ids, "window?", whole(1) },
  set_policy = { "policy", "string|function" }, metrics = {}, incidents = {}, prof = { "o?", "table" },
  tree = {}, kv = { "context?", whole(1) }, plan = {},
  close = {},
})

return M
