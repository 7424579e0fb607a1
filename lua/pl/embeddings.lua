-- A client's request for embeddings: an engine request for each input, no more tokens at a time than a step takes, so
-- that a long list leaves places to others, and who comes later does not wait for all of it. Each vector is written as
-- JSON when it comes; the answer goes out with the last.
local abi, json, openai = require "pl.abi", require "pl.json", require "pl.openai"
local answers = require "pl.answers"
local M = {}

-- Vectors as JSON ------------------------------------------------------------------------------------------

local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local two = {} -- of 12 bits
for i = 0, 4095 do
  local a, b = math.floor(i / 64) + 1, i % 64 + 1
  two[i] = letters:sub(a, a) .. letters:sub(b, b)
end

--- Base64 (RFC 4648) of a string.
function M.base64(s)
  local out, n = {}, #s
  for i = 1, n, 3 do
    local a, b, c = s:byte(i, i + 2)
    local v = a * 65536 + (b or 0) * 256 + (c or 0)
    out[#out + 1] = two[math.floor(v / 4096)]
    out[#out + 1] = two[v % 4096]
  end
  local pad = -n % 3
  if pad > 0 then out[#out] = pad == 1 and out[#out]:sub(1, 1) .. "=" or "==" end
  return table.concat(out)
end

-- Nine digits tell every f32 from its neighbours. Base64 is of f32 as they lie in memory, little-endian as all machines
-- that perilune runs on.
local function written(t, base64)
  local n, v = tonumber(t.dim[0]), abi.cast("const float *", t.data)
  if base64 then return json.encode(M.base64(abi.string(v, n * 4))) end
  local out = {}
  for i = 0, n - 1 do out[i + 1] = ("%.9g"):format(v[i]) end
  return "[" .. table.concat(out, ",") .. "]"
end

-- Jobs -----------------------------------------------------------------------------------------------------

-- Are there requests for something else?
local function others(engine) return engine.n_open > engine.n_embeds end

-- Engine requests for the next inputs, until all lists together have as many tokens there as a step takes: beside
-- others a chunk, as of prompts. Where others have the places, the rest waits.
local function feed(job, model)
  local o, engine = job.o, job.engine
  while job.n_open < model.pool.batch and #job.choices < #o.prompts do
    local i, most = #job.choices + 1, others(engine) and model.pool.chunk or model.pool.tokens
    if engine:room(job.tenant) < 1 then
      if i > 1 then return end
      error(openai.full(engine, job.tenant), 0)
    end
    if job.n_open > 0 and engine.embed_tokens >= most then return end
    local q = { tenant = job.tenant, max_tokens = 0 }
    for name, v in pairs(o.engine) do q[name] = v end
    local ok, request = pcall(engine.submit, engine, q, nil, nil, nil, o.prompts[i])
    if not ok then error(answers.not_taken(request), 0) end
    if not request then error(openai.full(engine, job.tenant), 0) end
    job.prompt_tokens = job.prompt_tokens + o.prompts[i].n
    o.prompts[i] = false
    job.choices[i], job.n_open = { request = request }, job.n_open + 1
  end
end

--- Hands the first of a job's inputs to the engine. Raises a refusal.
function M.submit(job, model)
  job.n_open, job.unwritten = 0, {}
  feed(job, model)
end

-- The request of an input has ended.
local function conclude(job, c)
  local r = c.request
  job.n_open, c.finish = job.n_open - 1, r.finish
  if r.finish ~= "stop" then error(answers.failure(r), 0) end
  job.unwritten[#job.unwritten + 1] = c
  job.cached_tokens = job.cached_tokens + (r.n_cached or 0)
end

local VALUES = 4096 -- written between two steps while others wait for the next: about two milliseconds
local function write(job)
  local list, n, at = job.unwritten, 0, 0
  while at < #list and (n < VALUES or not others(job.engine)) do
    at = at + 1
    local r = list[at].request
    n = n + tonumber(r.embedding.dim[0])
    list[at].written, r.embedding = written(r.embedding, job.o.base64), nil
  end
  job.unwritten = { unpack(list, at + 1) }
end

--- nil, as nothing is told before the end; and whether the job is over. job.refusal is set where it has failed,
--- job.restless where it is to be asked again without a step.
function M.news(job, model)
  local ok, e = pcall(function()
    for _, c in ipairs(job.choices) do
      if c.request.finish and not c.finish then conclude(job, c) end
    end
    feed(job, model)
    write(job)
  end)
  if not ok and not openai.is_refusal(e) then error(e, 0) end
  job.refusal, job.restless = job.refusal or not ok and e or nil, #job.unwritten > 0
  return nil, job.refusal ~= nil or job.n_open == 0 and #job.choices == #job.o.prompts and not job.restless
end

return M
