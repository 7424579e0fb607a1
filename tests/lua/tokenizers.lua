-- Golden token ids through the command line: `tokenize --lines`, with and without --specials, and back with
-- --decode. tests/c/tok_golden.c compares the same rows in C; here the whole way is tested. Files that are not
-- there are counted.
local cjson = require "cjson"
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local cache = os.getenv "XDG_CACHE_HOME" or (os.getenv "HOME" or "") .. "/.cache"
local passed, failed, skipped = 0, 0, 0
local function verdict(ok, what)
  if ok then passed = passed + 1 else failed = failed + 1; print("FAIL " .. what) end
end

local function there(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

-- Lines in, lines out.
local function call(args, lines)
  local stdin = os.tmpname()
  local f = assert(io.open(stdin, "wb"))
  f:write(table.concat(lines, "\n"), "\n")
  f:close()
  local p = assert(io.popen(("%s tokenize %s <%s"):format(perilune, args, stdin)))
  local out = {}
  for line in p:lines() do out[#out + 1] = line end
  p:close()
  os.remove(stdin)
  return out
end

local function list(ids) return "[" .. table.concat(ids, ",") .. "]" end

local function check(model, file)
  if not there(file) or not there(model) and not there(model .. "/tokenizer_config.json") then
    skipped = skipped + 1
    print("skipped " .. file)
    return
  end
  local rows, texts, ids = {}, {}, {}
  for line in io.lines(file) do
    local row = cjson.decode(line)
    rows[#rows + 1] = row
    -- the text as the file escapes it
    texts[#texts + 1] = line:match '"text":(".-[^\\]"),"ids"' or line:match '"text":(""),"ids"'
    ids[#ids + 1] = list(row.ids)
  end
  verdict(#texts == #rows and #rows > 0, file .. ": rows without a text")
  local special, plain = call(model .. " --lines --specials", texts), call(model .. " --lines", texts)
  local decoded = call(model .. " --lines --decode", ids)
  for i, row in ipairs(rows) do
    local where = file .. " " .. row.id
    verdict(special[i] == ids[i], ("%s: ids %s, want %s"):format(where, tostring(special[i]), ids[i]))
    local want = list(row.ids_plain or row.ids)
    verdict(plain[i] == want, ("%s: ids_plain %s, want %s"):format(where, tostring(plain[i]), want))
    local ok, text = pcall(cjson.decode, "[" .. tostring(decoded[i]) .. "]")
    ok = ok and text[1] == (row.decoded or row.text)
    verdict(ok, ("%s: decoded %s"):format(where, tostring(decoded[i])))
  end
end

check("tests/data/tiny-llama", "tests/data/tokens/tiny-bpe-1024.jsonl")
check("tests/data/tokens/tiny-kimi", "tests/data/tokens/tiny-kimi.jsonl")
local at_least = 3 * (52 + 122)
verdict(passed >= at_least, "too few rows ran: " .. passed)
local shared = "../shared"
if there(shared .. "/golden/README.md") then
  for _, name in ipairs { "qwen3", "deepseek_v3", "gptoss" } do
    check(shared .. "/tokenizers/" .. name, ("%s/golden/%s/tokens.jsonl"):format(shared, name))
  end
  at_least = at_least + 3 * 3 * 52
  verdict(passed >= at_least, "too few rows ran: " .. passed)
end
for file, name in pairs {
  ["SmolLM2-135M-Instruct.Q4_1"] = "smollm2-135m-instruct-q4_1", ["gemma-3-270m-q4_k_m"] = "gemma3-270m-q4_k_m",
  ["qwen2.5-coder-0.5b-instruct-q4_k_m"] = "qwen2.5-coder-0.5b-q4_k_m",
} do
  check(("%s/perilune/%s.gguf"):format(cache, file), ("%s/golden/%s/tokens.jsonl"):format(shared, name))
end
print(("%d passed, %d failed, %d skipped"):format(passed, failed, skipped))
os.exit(failed == 0 and 0 or 1)
