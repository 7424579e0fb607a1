-- models.lua PEER MODEL [PAIRS]: prefill (512 tokens) and decode (128 tokens) of one GGUF file, perilune beside
-- llama.cpp (PEER: its llama-bench), whole processes in turn, pinned, 1 and 2 threads. Prints medians, ranges and the
-- ratio by pairs, and appends a CSV row a line to bench/results/models.csv. Run by pl-lua.
local cjson = require "cjson"
local peer, model, pairs_wanted = arg[1], arg[2], tonumber(arg[3] or 9)
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local act = os.getenv "ACT" or "bf16"

local function output(command)
  local p = assert(io.popen(command))
  local text = p:read "*a"
  p:close()
  return text
end

local function pinned(threads) return ("taskset -c 0-%d "):format(threads - 1) end

local prompt = {}
for i = 1, 512 do prompt[i] = 300 + i * 37 % 20000 end
prompt = table.concat(prompt, ",")

-- tokens per second of one run; load is not counted on either side
local function ours(kind, threads)
  local what = kind == "prefill" and ("--ids %s --max-tokens 1"):format(prompt) or "--ids 300 --max-tokens 129"
  local command = "%s%s run '%s' %s --ignore-eos --temperature 0 --act %s --threads %d --json"
  local r = cjson.decode(output(command:format(pinned(threads), perilune, model, what, act, threads)))
  return r.timings[kind .. "_tok_s"]
end

local function theirs(kind, threads)
  local what = kind == "prefill" and "-p 512 -n 0" or "-p 0 -n 128"
  local r = cjson.decode(output(("%s'%s' -m '%s' -t %d -r 1 -o json %s 2>/dev/null"):format(pinned(threads), peer,
    model, threads, what)))
  return r[1].avg_ts
end

local function median(list)
  local s = { unpack(list) }
  table.sort(s)
  return (s[math.floor((#s + 1) / 2)] + s[math.ceil((#s + 1) / 2)]) / 2, s[1], s[#s]
end

local commit = dofile "bench/util.lua".commit()
local cpu = output "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1":gsub("%s+$", "")
local csv_path = "bench/results/models.csv"
local csv = io.open(csv_path)
local fresh = not csv
if csv then csv:close() end
csv = assert(io.open(csv_path, "a"))
if fresh then csv:write "date,commit,cpu,model,act,kind,threads,pairs,perilune_tok_s,peer_tok_s,ratio\n" end

print(("%s, %s, act %s, %d interleaved pairs, median (min-max)"):format(model:match "[^/]+$", cpu, act, pairs_wanted))
print("kind     threads  perilune tok/s            llama.cpp tok/s           ratio")
for _, kind in ipairs { "prefill", "decode" } do
  for threads = 1, 2 do
    local a, b, ratio = {}, {}, {}
    for i = 1, pairs_wanted do
      a[i], b[i] = ours(kind, threads), theirs(kind, threads)
      ratio[i] = a[i] / b[i]
    end
    local ma, la, ha = median(a)
    local mb, lb, hb = median(b)
    local mr, lr, hr = median(ratio)
    print(("%-8s %7d  %7.1f (%7.1f-%7.1f)  %7.1f (%7.1f-%7.1f)  %.2f (%.2f-%.2f)"):format(kind, threads, ma, la, ha,
      mb, lb, hb, mr, lr, hr))
    csv:write(("%s,%s,%s,%s,%s,%s,%d,%d,%.1f,%.1f,%.3f\n"):format(os.date "!%Y-%m-%d", commit, cpu:gsub(",", " "),
      model:match "[^/]+$", act,
      kind, threads, pairs_wanted, ma, mb, mr))
  end
end
csv:close()
