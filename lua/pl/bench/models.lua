-- Whole models beside llama.cpp on the same files: whole processes, perilune and the peer in turn, pinned to the same
-- cores. A shared machine changes its speed by the minute, so a ratio is the median over pairs of runs next to each
-- other, not the ratio of medians.
local err, json, kernels = require "pl.err", require "pl.json", require "pl.bench.kernels"
local M = {}

--- The whole table: tokens per second of a prompt; of one sequence behind so many tokens; of so many sequences; the
--- start of a process until its first token.
M.all = { "prefill-512", "prefill-4096", "decode-0", "decode-4096", "decode-16384", "batch-1", "batch-2", "batch-4",
  "batch-8", "batch-16", "batch-32", "start" }
M.usual = { "prefill-512", "decode-0" }
local DECODED = { near = 128, far = 32 } -- tokens that are timed without, and behind, other ones
local BATCH_PROMPT, BATCH_DECODED, START_PROMPT = 16, 32, 16

--- A part's name in two: "prefill", 512; nil: there is no such part.
function M.part(name)
  if name == "start" then return "start", 0 end
  local kind, n = name:match "^(%l+)%-(%d+)$"
  n = tonumber(n)
  if kind == "prefill" and n >= 1 or kind == "decode" or kind == "batch" and n >= 1 and n <= 256 then return kind, n end
end

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- What a command writes to standard output.
local function output(command)
  local errors = os.tmpname()
  local p = assert(io.popen(("%s 2>%s; echo \" $?\""):format(command, errors)))
  local body, code = p:read "*a":match "^(.*) (%d+)\n$"
  p:close()
  local said = io.open(errors, "rb")
  local why = said:read "*a":sub(-400)
  said:close()
  os.remove(errors)
  if code ~= "0" then
    err.raise(("bench: exit status %s of: %s"):format(tostring(code),
      command:gsub("(%d+,%d+,)[%d,]+", "%1...")), { (err.printable(why):gsub("%s+$", "")) })
  end
  return body
end

local function decoded(text) return json.decode(text:match "{.*}" or "") end
local function pinned(threads) return ("taskset -c 0-%d "):format(threads - 1) end

local function made_up(n)
  local ids = {}
  for i = 1, n do ids[i] = 100 + i * 37 % 400 end -- short, as a command line has a limit
  return table.concat(ids, ",")
end

-- perilune's own program: this process's.
local function program()
  local p = assert(io.popen "readlink /proc/$PPID/exe")
  local path = p:read "*l"
  p:close()
  return path
end

local function seconds_of(command)
  local C = require("pl.abi").C
  local t = C.pl_now_s()
  output(command)
  return C.pl_now_s() - t
end

-- Tokens (of `start`: first tokens) per second of one run; loading counts only where it is what is measured.
local function ours(o, model, kind, n, threads)
  local start = ("%s%s "):format(pinned(threads), quoted(o.program or program()))
  local tail = (" --act %s --path %s --threads %d"):format(o.act, o.path, threads)
  if kind == "batch" then
    local f = decoded(output(("%sbench serve %s --requests %d --batch %d --in %d --out %d --context %d "
      .. "--no-prefix-cache --json%s"):format(start, quoted(model), n, n, BATCH_PROMPT, BATCH_DECODED + 1,
      BATCH_PROMPT + BATCH_DECODED + 1, tail)))
    return n / f.itl_s.mean
  end
  local function run(ids, most)
    return ("%srun %s --ids %s --max-tokens %d --ignore-eos --json%s"):format(start, quoted(model), made_up(ids), most,
      tail)
  end
  if kind == "start" then return 1 / seconds_of(run(START_PROMPT, 1)) end
  if kind == "prefill" then return decoded(output(run(n, 1))).timings.prefill_tok_s end
  return decoded(output(run(math.max(n, 1), (n == 0 and DECODED.near or DECODED.far) + 1))).timings.decode_tok_s
end

local function theirs(o, model, kind, n, threads)
  local start, tail = pinned(threads), (" -m %s -t %d"):format(quoted(model), threads)
  if kind == "batch" then
    local peer = o.peer:gsub("llama%-bench$", "llama-batched-bench")
    return tonumber(output(("%s%s%s -npp %d -ntg %d -npl %d -c %d --output-format jsonl"):format(start, quoted(peer),
      tail, BATCH_PROMPT, BATCH_DECODED, n, n * (BATCH_PROMPT + BATCH_DECODED))):match '"speed_tg": ([%d.]+)')
  end
  local function bench(what) return ("%s%s%s -r 1 -o json %s"):format(start, quoted(o.peer), tail, what) end
  if kind == "start" then return 1 / seconds_of(bench(("--no-warmup -p %d -n 0"):format(START_PROMPT))) end
  local what = kind == "prefill" and ("-p %d -n 0"):format(n)
    or ("-p 0 -n %d -d %d"):format(n == 0 and DECODED.near or DECODED.far, n)
  return decoded(output(bench(what))).avg_ts
end

local function spread(list)
  local s = { unpack(list) }
  table.sort(s)
  return kernels.median(s), s[1], s[#s]
end

--- Measures. o: models (files), parts (see M.all), threads (a list), pairs, act, path, peer (llama.cpp's llama-bench;
--- nil: perilune alone; llama-batched-bench lies beside it), on_row(row). Returns { machine, rows }: model, act, path,
--- part, threads, pairs, tok_s, tok_s_min, tok_s_max, and with a peer peer_tok_s..., ratio, ratio_min, ratio_max.
function M.run(o)
  local f = { machine = kernels.machine(), rows = {} }
  for _, model in ipairs(o.models) do
    for _, name in ipairs(o.parts) do
      local kind, n = M.part(name)
      for _, threads in ipairs(o.threads) do
        local a, b, ratio = {}, {}, {}
        for i = 1, o.pairs do
          a[i] = ours(o, model, kind, n, threads)
          if o.peer then
            b[i] = theirs(o, model, kind, n, threads)
            ratio[i] = a[i] / b[i]
          end
        end
        local row = { model = model:match "[^/]+$", act = o.act, path = o.path, part = name, threads = threads,
          pairs = o.pairs }
        row.tok_s, row.tok_s_min, row.tok_s_max = spread(a)
        if o.peer then
          row.peer_tok_s, row.peer_tok_s_min, row.peer_tok_s_max = spread(b)
          row.ratio, row.ratio_min, row.ratio_max = spread(ratio)
        end
        f.rows[#f.rows + 1] = row
        if o.on_row then o.on_row(row) end
      end
    end
  end
  return f
end

M.head = ("%-36s %-13s %7s  %-24s %-24s %s"):format("model", "part", "threads", "perilune tok/s (min-max)",
  "llama.cpp", "ratio")
function M.line(r)
  local function cell(v, low, high) return v and ("%.1f (%.1f-%.1f)"):format(v, low, high) or "-" end
  return ("%-36s %-13s %7d  %-24s %-24s %s"):format(r.model, r.part, r.threads,
    cell(r.tok_s, r.tok_s_min, r.tok_s_max), cell(r.peer_tok_s, r.peer_tok_s_min, r.peer_tok_s_max),
    r.ratio and ("%.2f (%.2f-%.2f)"):format(r.ratio, r.ratio_min, r.ratio_max) or "-")
end

M.csv_head = "date,commit,cpu,model,act,path,part,threads,pairs,perilune_tok_s,peer_tok_s,ratio,ratio_min,ratio_max"
--- A row of such a file. commit: of the tree that the program was built from.
function M.csv_line(f, r, commit)
  local function number(v, format) return v and format:format(v) or "" end
  return table.concat({ os.date "!%Y-%m-%d", commit, (f.machine:gsub(",", " ")), r.model, r.act, r.path, r.part,
    r.threads, r.pairs, number(r.tok_s, "%.2f"), number(r.peer_tok_s, "%.2f"), number(r.ratio, "%.3f"),
    number(r.ratio_min, "%.3f"), number(r.ratio_max, "%.3f") }, ",")
end

--- The ratios (without a peer, the rates) as bars, a plot for each model.
function M.svg(f)
  local plots, by_model = {}, {}
  for _, r in ipairs(f.rows) do
    local p = by_model[r.model]
    if not p then
      p = { title = ("%s, act %s: %s"):format(r.model, r.act, r.ratio and "times llama.cpp" or "tokens per second"),
        names = { r.ratio and "ratio" or "tok/s" }, bars = {} }
      by_model[r.model], plots[#plots + 1] = p, p
    end
    p.bars[#p.bars + 1] = { label = ("%s t%d"):format(r.part, r.threads), r.ratio or r.tok_s }
  end
  return require("pl.svg").draw(plots)
end

return M
