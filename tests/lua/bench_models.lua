-- bench/random.lua writes files that load, the same ones every time; `perilune bench models` measures each kind of part
-- of one, beside a peer that answers as llama.cpp's programs do.
local cjson = require "cjson"
local build = os.getenv "PL_BUILD" or "build"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function output(command)
  local p = io.popen(command .. " 2>&1; echo \" $?\"")
  local text, code = p:read "*a":match "^(.*) (%d+)\n$"
  p:close()
  return text, code
end
local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end
local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end
local dir = os.tmpname()
os.remove(dir)
assert(os.execute("mkdir " .. dir) == 0)

for _, format in ipairs { "q4_0", "q8_0", "bf16" } do
  local path = ("%s/tiny-%s.gguf"):format(dir, format)
  local make = ("'%s/pl-lua' bench/random.lua tiny %s %s"):format(build, format, dir)
  local text, code = output(make)
  verdict(code == "0" and text:find(path .. "\n", 1, true), make .. ": " .. text)
  local first = read(path)
  verdict(output(make) == path .. "\n", "a file that is there is not written again")
  write(path, first:sub(1, 1000))
  output(make)
  verdict(read(path) == first, "the same file again, over a part of one")
  local m = require("pl.model").load(path, { threads = 1 })
  local nll = m:score({ 1, 2, 3, 4, 5, 6, 7, 8 }).nll
  verdict(nll > 4 and nll < 9, ("random weights know nothing, and their numbers are sane: %g"):format(nll))
  m:close()
end
for _, wrong in ipairs { "", "tiny", "tiny q6_k", "tiny f32", "llama q4_0" } do
  local _, code = output(("'%s/pl-lua' bench/random.lua %s"):format(build, wrong))
  verdict(code == "2", "random.lua " .. wrong)
end

-- peers that are always as fast
write(dir .. "/llama-bench", "#!/bin/sh\necho noise >&2\necho '[ { \"avg_ts\": 10.5 } ]'\n")
write(dir .. "/llama-batched-bench", "#!/bin/sh\necho '{\"speed_pp\": 1.0, \"t_tg\": 2.0, \"speed_tg\": 20.5}'\n")
os.execute(("chmod +x %s/llama-bench %s/llama-batched-bench"):format(dir, dir))
local bench = ("'%s/perilune' bench models %s/tiny-q4_0.gguf --threads 1 --pairs 3 "):format(build, dir)
local parts = "--parts prefill-20,decode-0,decode-30,batch-3,start "
local text, code = output(bench .. parts .. ("--json --peer %s/llama-bench --csv %s/rows.csv --svg %s/rows.svg"):format(
  dir, dir, dir))
verdict(code == "0", "bench models: " .. text)
local rows = cjson.decode(text).rows
verdict(#rows == 5, "a row a part")
for i, want in ipairs { 10.5, 10.5, 10.5, 20.5 } do
  local r = rows[i]
  verdict(r.peer_tok_s == want and r.tok_s > 0 and r.ratio_min <= r.ratio and r.ratio <= r.ratio_max
    and math.abs(r.ratio - r.tok_s / want) < 1e-6 * r.ratio, "the row of " .. r.part)
end
verdict(rows[5].part == "start" and rows[5].ratio > 0, "the row of the start")
local csv = read(dir .. "/rows.csv")
verdict(select(2, csv:gsub("\n", "")) == 6 and csv:find "^date,commit," and csv:find ",batch%-3,1,3,", "rows: " .. csv)
local svg = read(dir .. "/rows.svg")
verdict(svg:find "^<svg" and svg:find "</svg>\n$" and svg:find "prefill%-20 t1" and not svg:find "nan", "a drawing")

text, code = output(bench .. "--parts prefill-20")
verdict(code == "0" and text:find "prefill%-20 +1  [%d.]+ %(", "without a peer: " .. text)
text, code = output(bench .. ("--peer %s/nobody"):format(dir))
verdict(code == "1" and text:find "exit status 127", "a peer that is not there: " .. text)
for _, wrong in ipairs { "--parts prefill-0", "--parts batch", "--parts start-3", "--threads 0", "--pairs 0" } do
  text, code = output(bench .. wrong)
  verdict(code == "2", wrong .. ": " .. text)
end
text, code = output(("'%s/perilune' bench models %s/none.gguf"):format(build, dir))
verdict(code == "1", "a file that is not there: " .. text)
os.execute("rm -r " .. dir)
verdicts.done()
