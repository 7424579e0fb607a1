-- serve.lua MODEL PEER [ROUNDS] [CLIENTS,...]: `perilune serve` beside llama.cpp's server (PEER: its llama-server, see
-- bench/peer.sh; "-": none) on the same file. Every round loads the servers in turn with chats of about 240 tokens in
-- and 64 out, so many clients at a time (1,8,32), by `perilune bench serve --url`; no two prompts are the same, and no
-- server keeps any. Prints medians over rounds and the ratios of output tokens a second within rounds, then the rate of
-- /health, alone and beside 8 clients; appends rows to bench/results/serve.csv. Run by pl-lua.
-- ACT: activations of perilune, one or more (bf16,int8); REQUESTS of a run, for each client (3); THREADS (2); PORT: the
-- first of those that are used (18080); WORDS of a prompt (210).
local json, util = require "pl.json", dofile "bench/util.lua"
local path, peer, rounds = arg[1], arg[2] or "-", tonumber(arg[3] or 3)
local build = os.getenv "PL_BUILD" or "build"
local function setting(name, default) return tonumber(os.getenv(name) or default) end
local each, threads, port, words = setting("REQUESTS", 3), setting("THREADS", 2), setting("PORT", 18080),
  setting("WORDS", 210)
local OUT, SLOTS, CONTEXT = 64, 32, 512
local function numbers(s)
  local list = {}
  for n in s:gmatch "%d+" do list[#list + 1] = tonumber(n) end
  return list
end
local clients = numbers(arg[4] or "1,8,32")

-- Servers: a process each, killed at the end whatever happens ------------------------------------------------

local pids, files = {}, {}
local function finish(code)
  for _, pid in ipairs(pids) do os.execute("kill " .. pid) end
  for _, f in ipairs(files) do os.remove(f) end
  os.exit(code)
end
local function answers(at)
  return os.execute(("curl -sf -o /dev/null http://127.0.0.1:%d/health"):format(at)) == 0
end
local function start(name, command)
  local s = { name = name, port = port, url = ("http://127.0.0.1:%d"):format(port), log = os.tmpname() }
  port, files[#files + 1] = port + 1, s.log
  pids[#pids + 1] = util.output(("%s >%s 2>&1 & echo $!"):format(command:format(s.port), s.log)):gsub("%s", "")
  for _ = 1, 300 do
    if answers(s.port) then return s end
    os.execute "sleep 0.2"
  end
  error(("%s did not start:\n%s"):format(name, util.output("tail -5 " .. s.log)), 0)
end

-- What no option of `serve` says: no prefix cache.
local function deployment(act)
  local name = os.tmpname()
  files[#files + 1], files[#files + 2] = name, name .. ".lua"
  local f = assert(io.open(name .. ".lua", "w"))
  f:write(("return { model = %q, name = 'bench', socket = 'none', access_log = false,\n"
    .. "  pools = { all = { act = %q, batch = %d, context = %d, prefix = false, threads = %d } } }\n"):format(path, act,
    SLOTS, CONTEXT, threads))
  f:close()
  return name .. ".lua"
end

local servers = {}
local function start_all()
  for act in (os.getenv "ACT" or "bf16"):gmatch "[^,]+" do
    local s = start("perilune", ("%s/perilune serve %s --port %%d"):format(build, deployment(act)))
    s.act = act
    servers[#servers + 1] = s
  end
  if peer == "-" then return end
  local s = start("llama.cpp", ("%s -m %s --port %%d -t %d -np %d -c %d --no-cache-prompt --cache-ram 0 --no-ui")
    :format(peer, path, threads, SLOTS, SLOTS * CONTEXT))
  s.act = "int8" -- what it rounds activations to for products with Q4_1
  servers[#servers + 1] = s
end

-- The load ----------------------------------------------------------------------------------------------------

local command = "%s/perilune bench serve --url %s --clients %d --requests %d --in %d --out %d --ignore-eos --seed %d %s"
local seed = 0
local function load(s, n)
  seed = seed + 1
  local text = util.output(command:format(build, s.url, n, math.max(each * n, 4), words, OUT, seed, "--json"))
  local f = json.decode(text)
  if f.failed > 0 or f.output_tokens ~= f.successful * OUT then
    error(("%s: %s\nits log:\n%s"):format(s.name, text, util.output("tail -20 " .. s.log)), 0)
  end
  return f
end

local figures = { { "out_tok_s", function(f) return f.output_tok_s end } }
for _, what in ipairs { "ttft", "itl" } do
  for _, p in ipairs { "p50", "p99" } do
    figures[#figures + 1] = { ("%s_%s_ms"):format(what, p), function(f) return f[what .. "_s"][p] * 1e3 end }
  end
end

local function measure(n)
  for _, s in ipairs(servers) do s.runs = {} end
  for round = 1, rounds do
    for i = 1, #servers do
      local s = servers[(i + round) % #servers + 1]
      s.runs[round] = load(s, n)
    end
  end
  local last = servers[#servers]
  for _, s in ipairs(servers) do
    s.row, s.ratio = {}, {}
    for _, g in ipairs(figures) do
      local list = {}
      for i, f in ipairs(s.runs) do list[i] = g[2](f) end
      s.row[g[1]] = util.median(list)
    end
    for i, f in ipairs(s.runs) do s.ratio[i] = f.output_tok_s / last.runs[i].output_tok_s end
  end
end

-- nil where there is none: llama.cpp's server closes kept connections
local function health(s)
  local text = util.output(("%s/bench_health %d"):format(build, s.port))
  return tonumber(text:match "(%d+) requests/s"), tonumber(text:match "p99 ([%d.]+)")
end

-- The rate of /health while so many clients are served; those are not measured.
local function health_beside(s, n)
  seed = seed + 1
  local pid = util.output(command:format(build, s.url, n, 1000, words, OUT, seed, ">/dev/null 2>&1 & echo $!"))
    :gsub("%s", "")
  os.execute "sleep 2"
  local rate, p99 = health(s)
  os.execute("kill " .. pid)
  return rate, p99
end

local function main()
  start_all()
  local cpu, commit, name = util.cpu(), util.commit(), path:match "[^/]+$"
  local csv = util.csv("serve", "date,commit,cpu,model,server,act,threads,what,clients,rounds,requests,tokens_in,"
    .. "tokens_out,per_s,ttft_p50_ms,ttft_p99_ms,itl_p50_ms,itl_p99_ms,ratio,ratio_min,ratio_max")
  print(("%s, %s, %d threads; %d tokens out, medians of %d rounds"):format(name, cpu, threads, OUT, rounds))
  local line = "%-10s %-5s %7s  %9s  %8s %8s  %8s %8s  %s"
  print(line:format("server", "act", "clients", "out tok/s", "TTFT p50", "p99 ms", "ITL p50", "p99 ms",
    "of llama.cpp's tok/s (min-max)"))
  for _, n in ipairs(clients) do
    measure(n)
    for _, s in ipairs(servers) do
      local r, f = s.row, s.runs[1]
      local ratio, low, high = util.median(s.ratio)
      local is_beside = peer ~= "-" and s ~= servers[#servers]
      print(line:format(s.name, s.act, n, ("%.1f"):format(r.out_tok_s), ("%.0f"):format(r.ttft_p50_ms),
        ("%.0f"):format(r.ttft_p99_ms), ("%.1f"):format(r.itl_p50_ms), ("%.1f"):format(r.itl_p99_ms),
        is_beside and ("%.2f (%.2f-%.2f)"):format(ratio, low, high) or ""))
      io.flush()
      local cells = {}
      for i, g in ipairs(figures) do cells[i] = ("%.2f"):format(r[g[1]]) end
      csv(os.date "!%Y-%m-%d", commit, cpu, name, s.name, s.act, threads, "chat", n, rounds, f.successful,
        ("%.0f"):format(f.input_tokens / f.successful), OUT, table.concat(cells, ","),
        is_beside and ("%.3f,%.3f,%.3f"):format(ratio, low, high) or ",,")
    end
  end
  for _, s in ipairs(servers) do
    for _, busy in ipairs { 0, 8 } do
      local rate, p99
      if busy == 0 then rate, p99 = health(s) else rate, p99 = health_beside(s, busy) end
      if rate then
        print(("%-10s %-5s /health, 32 connections, beside %d clients: %.0f requests/s, p99 %.2f ms"):format(s.name,
          s.act, busy, rate, p99))
        csv(os.date "!%Y-%m-%d", commit, cpu, name, s.name, s.act, threads, "health", busy, 1, "", "", "",
          ("%.0f,,%.3f,,,,,"):format(rate, p99))
      end
    end
  end
end

local ok, e = pcall(main)
if not ok then io.stderr:write("serve.lua: ", tostring(e), "\n") end
finish(ok and 0 or 1)
