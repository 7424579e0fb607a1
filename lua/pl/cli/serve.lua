-- perilune serve: a model behind OpenAI's API.
local common, err, file = require "pl.cli.common", require "pl.err", require "pl.file"
local M = { name = "serve", takes = "MODEL", about = "serve a model over HTTP, in OpenAI's dialect" }

function M.options(p)
  common.compute(p)
  common.tiers(p)
  p:option("--address", "Numeric address to listen on."):default "127.0.0.1":argname "ADDRESS"
  p:option("--port", "Port; 0 = any free one, which is printed."):convert(common.whole(0, 65535)):default "8080"
    :argname "N"
  p:option("--name", "What the model is called. Default: the last part of its path."):argname "NAME"
  p:option("--keys", "API keys, a line each: KEY TENANT. Read again on SIGHUP."):argname "FILE"
  p:option("--tls-cert", "PEM file of a certificate; with --tls-key: HTTPS."):argname "FILE"
  p:option("--tls-key", "PEM file of its key."):argname "FILE"
  p:option("--batch", "Requests of one step."):convert(common.whole(1, 4096)):default "16":argname "N"
  p:option("--queue", "Requests that may wait beside those; more get 429."):convert(common.whole(0, 1e6)):default "256"
    :argname "N"
  p:option("--context", "Tokens of prompt and answer together. Default: the model's, at most 4096.")
    :convert(common.whole(1)):argname "N"
  p:option("--policy", "Who goes next: a policy's name, or a file that returns function(s).")
    :argname "NAME|FILE"
  p:option("--connections", "Connections at once, if the system allows as many descriptors; one more gets a 503.")
    :convert(common.whole(1, 1e6)):default "16384":argname "N"
  p:option("--max-body", "Megabytes of a request's body."):convert(common.whole(1, 1024)):default "8":argname "MB"
  p:option("--drain", "Seconds that requests under way have after SIGTERM."):convert(common.number(0, 1e6))
    :default "30":argname "S"
  p:flag("--vllm-names", "/metrics shows its figures under vLLM's names too.")
  p:flag("--no-log", "No line of JSON on standard error for each request.")
end

local function read(path)
  local text, why = file.read(path, file.recipe)
  if not text then error(err.new(why), 0) end
  return text
end

function M.run(o)
  if (o.tls_cert == nil) ~= (o.tls_key == nil) then require("pl.cli").usage "want both of --tls-cert and --tls-key" end
  local function log(text) io.stderr:write("perilune: ", text, "\n") end
  local s = require("pl.serve").open({ model = o.model, name = o.name, keys = o.keys, policy = o.policy,
    context = o.context, load = common.load_options(o, { batch = o.batch, queue = o.queue }), drain_s = o.drain,
    vllm_names = o.vllm_names,
    http = { address = o.address, port = o.port, max_connections = o.connections, log_fd = o.no_log and -1 or 2,
      body_bytes = o.max_body * 2 ^ 20, bodies_bytes = math.max(256, 2 * o.max_body) * 2 ^ 20,
      cert = o.tls_cert and read(o.tls_cert), key = o.tls_key and read(o.tls_key) } }, log)
  local m = s.engine_model
  common.written(io.write(("serving %s on %s://%s:%d\n"):format(s.model.name, o.tls_cert and "https" or "http",
    o.address:find ":" and "[" .. o.address .. "]" or o.address, s.http.port)) and io.flush())
  log(("%s, act %s: load %.2f s; %d requests a step, %d tokens each; %d connections"):format(m.dev:describe(),
    m.pool.act, m.load_s, m.pool.batch, m.context, s.http:stats().max_connections))
  local code = s:run()
  local dev = m.dev
  m:close()
  dev:close()
  return code
end

return M
