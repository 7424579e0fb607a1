-- `perilune bench serve --url`: a load on our own server, by each interface, closed and open loop, several runs, a key,
-- a file of requests; a server that fails.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq
local function temp(text)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
  return path
end
local function bench(args)
  local p = io.popen(("%s bench serve %s 2>&1; echo $?"):format(perilune, args))
  local text, code = p:read("*a"):match "^(.-)(%d+)\n$"
  p:close()
  return text, tonumber(code)
end
local function json(args)
  local text, code = bench(args .. " --json")
  eq(code, 0, args .. ": " .. text)
  local fine, t = pcall(cjson.decode, text)
  return fine and t or {}
end

-- what a stream says, and what a server that lies says
do
  local piece = require("pl.client").piece
  local p = piece('{"choices":[{"delta":{"content":"a","reasoning":""},"finish_reason":"stop"}],"usage":'
    .. '{"prompt_tokens":3,"completion_tokens":null,"prompt_tokens_details":{"cached_tokens":2}}}')
  ok(p.text == "a" and not p.thought and p.finish == "stop" and p.prompt_tokens == 3 and not p.completion_tokens
    and p.cached_tokens == 2, "a piece")
  eq(piece "[DONE]", false, "the end")
  for data, want in pairs { ["{"] = "not JSON", ["3"] = "not JSON", ['{"error":{"message":"no\\u001b"}}'] = "^no",
    ['{"usage":{"prompt_tokens":-5}}'] = "prompt_tokens: %-5", ['{"usage":{"completion_tokens":1e300}}'] = "1e%+300",
    ['{"usage":{"completion_tokens":"9"}}'] = "want a count" } do
    local none, why = piece(data)
    ok(none == nil and why:find(want) and not why:find "%c", data .. ": " .. tostring(why))
  end
end

local key = temp "sesame-open\n"
local keys = temp "sesame-open tenant\n"
local s = client.serve("tests/data/tiny-llama --context 512 --batch 8 --keys " .. keys)
local url = ("--url http://127.0.0.1:%d --key-file %s"):format(s.port, key)

local f = json(url .. " --requests 6 --clients 3 --in 20 --out 5 --ignore-eos --api completions")
eq(f.successful, 6, "closed loop: successful")
eq(f.output_tokens, 30, "closed loop: tokens out")
ok(f.input_tokens >= 6 * 20, "closed loop: tokens in, as the server counts them")
ok(f.ttft_s.n == 6 and f.ttft_s.p50 > 0 and f.e2e_s.p50 >= f.ttft_s.p50, "closed loop: times")

f = json(url .. " --requests 5 --clients 1 --in 20 --out 4 --ignore-eos --api completions --prompts ids --vocab 200")
eq(f.input_tokens, 100, "ids: exactly so many tokens")

f = json(url .. " --requests 8 --rate 40 --in 10 --out 3 --ignore-eos --api completions --lengths uniform")
eq(f.successful, 8, "open loop")
ok(f.seconds > 0.02, "open loop: arrivals take time")

local lines = temp '{"prompt": "Hello", "output": 3}\n{"input": 9, "output": 2}\n'
f = json(url .. " --requests 4 --clients 2 --ignore-eos --api completions --requests-file " .. lines)
eq(f.output_tokens, 10, "lengths from a file")

local svg = os.tmpname()
local text, code = bench(url .. " --requests 3 --clients 1,2 --in 8 --out 3 --api completions --svg " .. svg)
eq(code, 0, "a sweep: " .. text)
local _, blocks = text:gsub("Serving Benchmark Result", "")
eq(blocks, 2, "a sweep: a block each")
for _, line in ipairs { "Successful requests:", "Benchmark duration %(s%):", "Total input tokens:",
  "Total generated tokens:", "Mean TTFT %(ms%):", "Median TPOT %(ms%):", "P99 ITL %(ms%):" } do
  ok(text:find(line), "the block has " .. line)
end
ok(io.open(svg):read("*a"):find "^<svg .*</svg>\n$", "the drawing")

local function fails(args, want_code, want)
  local said, exit = bench(args)
  eq(exit, want_code, args .. ": exit")
  ok(said:find(want, 1, true), ("%s: said %s, want %s"):format(args, said, want))
end
fails(("--url http://127.0.0.1:%d"):format(s.port), 1, "status 401")
fails(url .. " --name nobody", 1, "status 404")
fails("--url ftp://x", 2, "--url: 'ftp://x', want http://HOST:PORT")
fails("--url http://127.0.0.1:1", 1, "127.0.0.1:1")
fails("", 2, "want one of MODEL and --url")
fails(url .. " --clients 1,2 --rate 1,2", 2, "not both")
fails(url .. " --clients x", 2, "--clients: 'x', want a whole number")
fails(url .. " --prompts ids", 2, "wants --api completions")
fails(url .. " --requests-file /nowhere", 1, "/nowhere")
fails(url .. " --requests-file " .. temp "[1]x\n", 1, "want a JSON object a line")
fails(url .. " --requests-file " .. temp '{"prompt": 3}\n', 1, "prompt")

s.signal(9)
s.wait()
verdicts.done()
