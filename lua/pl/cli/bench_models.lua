-- perilune bench models: whole models, beside llama.cpp.
local common = require "pl.cli.common"
local M = { name = "models", about = "prefill, decode and start of GGUF files, beside llama.cpp" }

function M.options(p)
  p:argument("models", "GGUF files."):args "+"
  p:option("--peer", "llama.cpp's llama-bench (bench/peer.sh builds it). Not given: perilune alone."):argname "FILE"
  p:option("--parts", "prefill-TOKENS, decode-DEPTH, batch-SEQUENCES, start; or all, which takes hours."
    .. " Default: prefill-512,decode-0."):convert(common.list(function(s)
      if s == "all" or require("pl.bench.models").part(s) then return s end
      return nil, "want prefill-TOKENS, decode-DEPTH, batch-SEQUENCES, start or all"
    end)):argname "LIST"
  p:option("--threads", "CPU threads, on as many cores."):convert(common.list(common.whole(1, 1024))):default "1,2"
    :argname "LIST"
  p:option("--pairs", "Runs of each side."):convert(common.whole(1, 1000)):default "9":argname "N"
  p:option("--act", "What perilune rounds activations to."):choices(common.acts):default "bf16"
  p:option("--path", "perilune's CPU code path."):choices(common.paths):default "auto"
  p:option("--csv", "Append the rows to a file."):argname "FILE"
  p:option("--svg", "Draw them."):argname "FILE"
  common.json(p)
end

-- The commit of the tree that we are in, for rows that are kept; "-dirty": with changes, results apart.
local function commit()
  local p = io.popen("git describe --always 2>/dev/null && git status --porcelain --untracked-files=no -- . "
    .. "':!bench/results' 2>/dev/null")
  local name, changed = p:read "*l", p:read "*l"
  p:close()
  return name and name .. (changed and "-dirty" or "") or ""
end

local function csv(path, head)
  local old = io.open(path)
  if old then old:close() end
  local f, why = io.open(path, "a")
  if not f then error(require("pl.err").new(why), 0) end
  if not old then f:write(head, "\n") end
  return f
end

function M.run(o)
  local models, parts = require "pl.bench.models", {}
  for _, name in ipairs(o.parts or models.usual) do
    for _, part in ipairs(name == "all" and models.all or { name }) do parts[#parts + 1] = part end
  end
  common.will_write(o.svg)
  for _, path in ipairs(o.models) do
    local checkpoint, err = require "pl.checkpoint", require "pl.err"
    checkpoint.need(path)
    if checkpoint.kind(path) ~= "gguf" then error(err.new(path .. ": not a GGUF file"), 0) end
  end
  local kept, here = o.csv and csv(o.csv, models.csv_head), o.csv and commit()
  local function line(s) if not o.json then common.written(io.write(s, "\n") and io.flush()) end end
  local machine = { machine = require("pl.bench.kernels").machine() }
  line(("%s, act %s, path %s, %d runs of each side in turn, medians (least-most)"):format(machine.machine, o.act,
    o.path, o.pairs))
  line(models.head)
  local f = models.run { models = o.models, parts = parts, threads = o.threads, pairs = o.pairs, act = o.act,
    path = o.path, peer = o.peer, on_row = function(r)
      line(models.line(r))
      if kept then kept:write(models.csv_line(machine, r, here), "\n") kept:flush() end
    end }
  if kept then kept:close() end
  if o.svg then require("pl.file").write(o.svg, models.svg(f)) end
  if o.json then
    local json = require "pl.json"
    f.rows = json.list(f.rows)
    print(json.encode(f))
  end
  return 0
end

return M
