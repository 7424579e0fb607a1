-- perilune bench serve: a load on the engine of a model, in this process; with --url, on any server with OpenAI's API.
local cli, common = require "pl.cli", require "pl.cli.common"
local M = { name = "serve", about = "a load on the engine, or on a server (--url): throughput and latencies" }

local rows = {
  { "--requests", "requests", "Requests.", 1, "N", true, 1e6 },
  { "--concurrency", "concurrency", "At most so many requests at a time; 0: no limit.", 0, "N", true },
  { "--in", "input", "Mean tokens of a prompt.", 1, "MEAN" },
  { "--out", "output", "Mean tokens of an answer.", 1, "MEAN" },
  { "--tenants", "tenants", "Tenants; the k-th sends 1/k as much as the first.", 1, "N", true },
  { "--prefixes", "prefixes", "Common texts that prompts begin with.", 1, "N", true },
  { "--prefix-tokens", "prefix_tokens", "Tokens of a common text.", 0, "N", true },
  { "--prefix-share", "prefix_share", "Share of the prompts that begin with one.", 0, "P", false, 1 },
  { "--seed", "seed", "The same seed gives the same requests.", 0, "S", true, 2 ^ 53 },
}

function M.options(p)
  common.compute(p, true):args "?"
  common.tiers(p)
  local bench = require "pl.bench"
  for _, r in ipairs(rows) do
    p:option(r[1], ("%s Default: %g."):format(r[3], bench.defaults[r[2]])):target(r[2])
      :convert(r[6] and common.whole(r[4], r[7]) or common.number(r[4], r[7] or 1e9)):argname(r[5])
  end
  p:option("--lengths", "Distribution of lengths. Default: fixed.")
    :choices { "exponential", "lognormal", "uniform", "fixed" }
  p:option("--policy", "decode_first, fair, deadline, longest_prefix_first, or a file. Default: the recipe's.")
    :argname "NAME|FILE"
  p:option("--batch", "Requests of one step."):convert(common.whole(1)):argname "N"
  p:option("--step-tokens", "Tokens of one step."):convert(common.whole(1)):argname "N"
  p:option("--chunk", "Of these, tokens of prompts while requests decode. Default: an eighth, at least 64.")
    :convert(common.whole(1)):argname "N"
  p:option("--context", "Tokens of cache per request of the batch."):convert(common.whole(1)):argname "N"
  p:option("--cache-bytes", "Bytes of the whole cache, in place of that.")
    :convert(common.whole(1, 2 ^ 53)):argname "N"
  p:option("--queue", "Requests that may wait; more are refused. Default: all.")
    :convert(common.whole(0, 1e6)):argname "N"
  p:flag("--no-prefix-cache", "Do not keep pages for prompts that begin alike.")
  p:option("--rate", "Requests a second (Poisson); 0: all at once, or as --concurrency allows. Default: 0."
    .. " With --url: several, with commas, one run each."):convert(common.list(common.number(0, 1e9)))
    :argname "R[,R...]"
  p:option("--url", "A server, in place of a model: http://HOST:PORT."):convert(common.url):argname "URL"
  p:option("--clients", "With --url: so many requests at a time, or several such numbers, one run each. Default: 1, or"
    .. " with --rate no limit."):convert(common.list(common.whole(1, 10000))):argname "N[,N...]"
  p:option("--api", "With --url: which of its interfaces. Default: chat."):choices { "chat", "completions" }
  p:option("--name", "With --url: the model's name. Default: the first that the server has."):argname "NAME"
  p:option("--key-file", "With --url: the API key is in this file."):argname "FILE"
  p:option("--requests-file", "With --url: a JSON object a line, with prompt, messages or input (tokens, made up), and"
    .. " output (tokens)."):argname "FILE"
  p:option("--prompts", "With --url: what prompts are made of; ids want --api completions. Default: words.")
    :choices { "words", "ids" }
  p:option("--vocab", "With --url and --prompts ids: ids are below N. Default: 1000."):convert(common.whole(1))
    :argname "N"
  p:option("--temperature", "With --url: 0 = always the likeliest token. Default: 0.")
    :convert(common.number(0, 100)):argname "T"
  p:flag("--ignore-eos", "With --url: ask for answers of full length, where the server knows the field.")
  p:option("--svg", "With --url: draw throughput and latencies against load."):argname "FILE"
  common.prof(p)
  common.json(p)
end

local of_servers = { "clients", "api", "name", "key_file", "requests_file", "prompts", "vocab", "temperature",
  "ignore_eos", "svg" }
local of_engines = { "concurrency", "tenants", "prefixes", "prefix_tokens", "prefix_share", "policy", "batch",
  "step_tokens", "chunk", "context", "cache_bytes", "queue", "no_prefix_cache", "prof", unpack(common.of_models) }

-- A load on a server: one run for each rate, or each number of clients.
local function remote(o, run)
  local bench, url = require "pl.bench", require "pl.bench.url"
  if o.prompts == "ids" and o.api ~= "completions" then cli.usage "--prompts ids wants --api completions" end
  local rates, clients = o.rate or { 0 }, o.clients or { o.rate and 0 or 1 }
  if #rates > 1 and #clients > 1 then cli.usage "want one of --rate and --clients, not both, with several numbers" end
  local list, failed = {}, 0
  for i = 1, math.max(#rates, #clients) do
    local r = { url = o.url, api = o.api, model = o.name, prompts = o.prompts, vocab = o.vocab,
      temperature = o.temperature, ignore_eos = o.ignore_eos, untried = i > 1,
      token = o.key_file and require("pl.client").token(o.key_file),
      list = o.requests_file and url.read(o.requests_file),
      rate = rates[i] or rates[1], clients = clients[i] or clients[1] }
    for k, v in pairs(run) do r[k] = v end
    r.seed = (r.seed or url.defaults.seed) + i - 1 -- no run finds the prompts of the one before in a cache
    local f = url.run(r)
    list[i], failed = f, failed + f.failed
    if not o.json then
      if #rates > 1 or #clients > 1 then print(("\n%d clients, %g requests a second"):format(f.clients, f.rate)) end
      print(bench.text(f))
      io.flush()
    end
    for _, why in ipairs(f.errors) do io.stderr:write("perilune: a request failed: ", why, "\n") end
  end
  local json = require "pl.json"
  if o.json then print(json.encode(#list > 1 and json.list(list) or list[1])) end
  if o.svg then require("pl.file").write(o.svg, bench.svg(list, #rates > 1 and "rate" or #clients > 1 and "clients"
    or o.rate and "rate" or "clients")) end
  return failed > 0 and 1 or 0
end

function M.run(o)
  local bench = require "pl.bench"
  local run = { lengths = o.lengths }
  for _, r in ipairs(rows) do run[r[2]] = o[r[2]] end
  if (o.url == nil) == (o.model == nil) then cli.usage "want one of MODEL and --url" end
  common.only(o, o.url, "wants --url", of_servers)
  common.only(o, not o.url, "wants MODEL, not --url", of_engines)
  common.only(o, o.prompts == "ids", "wants --prompts ids", { "vocab" })
  common.only(o, (o.prefix_share or 0) > 0, "wants --prefix-share above 0", { "prefixes", "prefix_tokens" })
  common.will_write(o.svg)
  if o.url then return remote(o, run) end
  if o.rate and #o.rate > 1 then cli.usage "several rates want --url" end
  run.rate = o.rate and o.rate[1]
  local load = common.load_options(o, { batch = o.batch, tokens = o.step_tokens, chunk = o.chunk, context = o.context,
    cache_bytes = o.cache_bytes, queue = o.queue or o.requests or bench.defaults.requests,
    prefix = not o.no_prefix_cache })
  local m = require("pl.model").load(o.model, load)
  if o.policy then m:set_policy(o.policy) end
  common.start_prof(o, m)
  local f = bench.run(m, run)
  f.answers = nil
  f.kv, f.act, f.path, f.threads = m.engine.cache, m.pool.act, m.dev:path(), m.dev:threads()
  print(o.json and require("pl.json").encode(f) or bench.text(f))
  common.end_prof(o, m)
  m:close()
  return 0
end

return M
