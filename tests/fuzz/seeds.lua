-- seeds.lua: writes the seed corpus, tests/fuzz/corpus/TARGET/NAME. Run it by hand when a parser learns
-- something new: luajit tests/fuzz/seeds.lua
-- luacheck: no max line length
local ffi = require "ffi"
local root = (arg[0]:match "^(.*)/[^/]*$" or ".") .. "/corpus/"

local function write(target, name, s)
  os.execute(("mkdir -p %s%s"):format(root, target))
  local f = assert(io.open(root .. target .. "/" .. name, "wb"))
  f:write(s)
  f:close()
end

local function number(ctype, v) return ffi.string(ffi.new(ctype .. "[1]", v), ffi.sizeof(ctype)) end
local function u32(v) return number("uint32_t", v) end
local function u64(v) return number("uint64_t", v) end
local function str(s) return u64(#s) .. s end

-- GGUF: values by type, keys, tensor records
local RAW = { u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, bool = 7, string = 8, list = 9, u64 = 10, i64 = 11, f64 = 12 }
local ctype = { u8 = "uint8_t", i8 = "int8_t", u16 = "uint16_t", i16 = "int16_t", u32 = "uint32_t", i32 = "int32_t", f32 = "float",
  bool = "uint8_t", u64 = "uint64_t", i64 = "int64_t", f64 = "double" }
local function value(t, v) return t == "string" and str(v) or number(ctype[t], v) end
local function key(k, t, v) return str(k) .. u32(RAW[t]) .. value(t, v) end
local function list(k, t, vs)
  local out = { str(k), u32(RAW.list), u32(RAW[t]), u64(#vs) }
  for _, v in ipairs(vs) do out[#out + 1] = value(t, v) end
  return table.concat(out)
end
local function gguf(version, keys, tensors, data, align)
  local out = "GGUF" .. u32(version) .. u64(#tensors) .. u64(#keys) .. table.concat(keys) .. table.concat(tensors)
  align = align or 32
  return out .. ("\0"):rep(-#out % align) .. ("\0"):rep(data)
end
local function tensor(name, dims, t, offset)
  local out = { str(name), u32(#dims) }
  for _, d in ipairs(dims) do out[#out + 1] = u64(d) end
  return table.concat(out) .. u32(t) .. u64(offset)
end

write("gguf", "empty", gguf(3, {}, {}, 0))
write("gguf", "types", gguf(2, { key("a", "u8", 1), key("b", "i8", -1), key("c", "u16", 1), key("d", "i16", -1), key("e", "u32", 1),
  key("f", "i32", -1), key("g", "f32", 1.5), key("h", "bool", 1), key("i", "string", "text"), key("j", "u64", 1), key("k", "i64", -1),
  key("l", "f64", 1.5), list("m", "string", { "a", "", "bc" }), list("n", "u16", { 1, 2 }), list("o", "f32", {}),
  list("p", "bool", { 0, 1 }) }, {}, 0))
write("gguf", "tensors", gguf(3, { key("general.alignment", "u32", 64) },
  { tensor("a", { 64, 3 }, 2, 0), tensor("b", { 2, 3, 1, 2 }, 0, 128), tensor("c", { 256 }, 12, 192) }, 384, 64))
write("gguf", "overlap", gguf(3, {}, { tensor("a", { 32 }, 0, 0), tensor("b", { 32 }, 0, 96) }, 256))
local tokens, scores, types = {}, {}, {}
local function token(s, kind, score)
  tokens[#tokens + 1], types[#types + 1], scores[#scores + 1] = s, kind or 1, score or -#tokens
end
token("<unk>", 2) token("<s>", 3) token("</s>", 3) token("\226\150\129", 1) token("a", 1) token("b", 1) token("ab", 1) token("\226\150\129a", 1)
token("<0x0A>", 6) token("<0xC3>", 6) token("<0xA9>", 6) token("<user>", 4)
write("gguf", "spm", gguf(3, { key("tokenizer.ggml.model", "string", "llama"), key("tokenizer.ggml.pre", "string", "default"),
  list("tokenizer.ggml.tokens", "string", tokens), list("tokenizer.ggml.scores", "f32", scores), list("tokenizer.ggml.token_type", "i32", types),
  key("tokenizer.ggml.bos_token_id", "u32", 1), key("tokenizer.ggml.eos_token_id", "u32", 2), key("tokenizer.ggml.unknown_token_id", "u32", 0),
  key("tokenizer.ggml.add_bos_token", "bool", 1), key("tokenizer.ggml.add_space_prefix", "bool", 0) }, {}, 0))
for _, pre in ipairs { "gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-v3", "gpt-4o" } do
  write("gguf", "bpe-" .. pre, gguf(3, { key("tokenizer.ggml.model", "string", "gpt2"), key("tokenizer.ggml.pre", "string", pre),
    list("tokenizer.ggml.tokens", "string", { "a", "b", "\196\160", "\195\131", "\194\169", "ab", "\196\160a", "<s>" }),
    list("tokenizer.ggml.token_type", "i32", { 1, 1, 1, 1, 1, 1, 1, 3 }), list("tokenizer.ggml.merges", "string", { "a b", "\196\160 a" }),
    key("tokenizer.ggml.bos_token_id", "u32", 7), key("tokenizer.ggml.add_bos_token", "bool", 0) }, {}, 0))
end

-- safetensors: the first byte chooses (safetensors.c)
local head = '{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"s":{"dtype":"F32","shape":[],'
  .. '"data_offsets":[12,16]},"v":{"dtype":"F16","shape":[1,1,1,1,2],"data_offsets":[16,20]},"o":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[24,28]}}'
write("safetensors", "file", "\0" .. u64(#head) .. head .. ("\7"):rep(28))
write("safetensors", "short", "\0" .. u64(100) .. "{}")
write("safetensors", "head", "\1" .. head)
write("safetensors", "overlap", '\1{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I64","shape":[1],"data_offsets":[3,11]}}')
write("safetensors", "sizes", '\1{"a":{"dtype":"F8_E4M3","shape":[4294967296,4294967296],"data_offsets":[-1,9223372036854775807]}}')
write("safetensors", "index", '\2{"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}')
write("safetensors", "index-up", '\2{"weight_map":{"a":"../m-1.safetensors"}}')

-- quantised checkpoints: config, head, data (quantised.c). A tensor is NAME DTYPE SIZES
local width = { I64 = 8, I32 = 4, F32 = 4, F16 = 2, BF16 = 2, U8 = 1, F8_E4M3 = 1 }
local function quantised(name, config, tensors, data)
  local parts, at = {}, 0
  for spec in tensors:gmatch "[^;]+" do
    local tensor_name, dtype, sizes = spec:match "(%S+) (%S+) (%S+)"
    local n = width[dtype]
    for d in sizes:gmatch "%d+" do n = n * tonumber(d) end
    parts[#parts + 1] = ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(tensor_name, dtype, sizes, at, at + n)
    at = at + n
  end
  write("quantised", name, ('{"quantization_config":{%s}}'):format(config) .. "\0{" .. table.concat(parts, ",") .. "}\0" .. (data or "\17"))
end
local function ct(weights) return '"quant_method":"compressed-tensors","format":"mixed-precision","ignore":["lm_head","re:.*gate"],"config_groups":{"a":'
  .. '{"targets":["Linear","re:m.*"],"weights":{' .. weights .. "}}}" end
quantised("ct-int4", ct '"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32,"actorder":null',
  "m.weight_packed I32 2,8;m.weight_scale BF16 2,2;m.weight_shape I64 2;n.bias F32 1")
quantised("ct-zeros", ct '"num_bits":4,"type":"int","symmetric":false,"strategy":"channel"',
  "m.weight_packed I32 9,4;m.weight_scale F16 9,1;m.weight_zero_point I32 2,1")
quantised("ct-f8", ct '"num_bits":8,"type":"float","strategy":"block","block_structure":[2,48]', "m.weight F8_E4M3 3,100;m.weight_scale BF16 2,3")
quantised("ct-nvfp4", ct '"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16',
  "m.weight_packed U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_global_scale F32 1;m.input_global_scale F32 1")
quantised("ct-mxfp4", ct '"num_bits":4,"type":"float","strategy":"group","group_size":32', "m.weight_packed U8 2,32;m.weight_scale U8 2,2")
quantised("fp8", '"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],"modules_to_not_convert":["gate","a.*.b"]',
  "m.weight F8_E4M3 2,160;m.weight_scale_inv F32 1,2;gate.weight BF16 2,2")
quantised("fp8-tensor", '"quant_method":"fp8"', "m.weight F8_E4M3 2,96;m.weight_scale F32 1;m.input_scale F32 1")
quantised("gptq", '"quant_method":"gptq","bits":4,"group_size":32', "m.qweight I32 8,8;m.scales F16 2,8;m.qzeros I32 2,1;m.g_idx I32 64")
quantised("gptq-order", '"quant_method":"gptq","bits":4,"group_size":32,"desc_act":true',
  "m.g_idx I32 64;m.qweight I32 8,8;m.scales F16 2,8;m.qzeros I32 2,1", "\1\0\0\0\0\0\0\0")
quantised("ct-order", ct '"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32,"actorder":"group"',
  "m.weight_g_idx I32 64;m.weight_packed I32 2,8;m.weight_scale BF16 2,2", "\1\0\0\0\0\0\0\0")
quantised("gptq-v2", '"quant_method":"gptq","bits":4,"group_size":-1,"checkpoint_format":"gptq_v2"', "m.qweight I32 8,8;m.scales F16 1,8;m.qzeros I32 1,1", "w")
quantised("awq", '"quant_method":"awq","bits":4,"group_size":64,"version":"gemm"', "m.qweight I32 64,2;m.scales F16 1,16;m.qzeros I32 1,2")
quantised("modelopt", '"quant_method":"modelopt","quant_algo":"NVFP4","exclude_modules":["lm_head*"]',
  "m.weight U8 2,32;m.weight_scale F8_E4M3 2,4;m.weight_scale_2 F32 1;m.input_scale F32 1")
quantised("mxfp4", '"quant_method":"mxfp4"', "m_blocks U8 2,3,2,16;m_scales U8 2,3,2")

-- packed files: counts, options, head (packed.c)
local function form(name, layout) return str(name) .. u32(layout) .. u32(0) .. ("i"):rep(16) end
local function packed_tensor(name, how, number_of_form, dims, offset, bytes)
  local out = { str(name), str(how), u32(number_of_form), u32(#dims) }
  for _, d in ipairs(dims) do out[#out + 1] = u64(d) end
  return table.concat(out) .. u64(offset) .. u64(bytes) .. ("d"):rep(16)
end
local function packed(name, kind, texts, forms, tensors)
  local parts, n = {}, 0
  for k, v in pairs(texts) do parts[#parts + 1], n = str(k) .. str(v), n + 1 end
  write("packed", name, string.char(n, #forms, #tensors, kind) .. '{"act":"int8","source":"m"}\0' .. table.concat(parts)
    .. table.concat(forms) .. table.concat(tensors))
end
packed("hf", 1, { ["config.json"] = "{}" }, { form("f32", 0), form("q4_0", 1) }, {
  packed_tensor("n", "rows, f32", 0, { 8 }, 4096, 32), packed_tensor("w", "packed, stored", 1, { 3, 64 }, 8192, 192) })
packed("gguf", 0, { gguf = "GGUF" }, { form("bf16", 0) }, { packed_tensor("a", "", 0, { 1, 2, 3, 4 }, 4160, 48) })
packed("overlap", 1, {}, { form("u8", 0) }, { packed_tensor("a", "x", 0, { 100 }, 4096, 100), packed_tensor("b", "x", 0, { 9 }, 4160, 9) })
packed("sizes", 1, {}, { form("f32", 0) }, { packed_tensor("a", "x", 0, { 2 ^ 33, 2 ^ 33 }, 4096, 100) })
write("packed", "magic", "perilune" .. u32(1) .. u32(2) .. ("\0"):rep(56) .. "{}")

-- config.json
write("config_json", "llama", '{"architectures":["LlamaForCausalLM"],"hidden_size":192,"rms_norm_eps":1e-05,"rope_scaling":null,'
  .. '"tie_word_embeddings":false,"eos_token_id":[0,2],"rope":{"factor":8.0,"type":"yarn","list":[1,2.5]}}')
write("config_json", "nested", '{"a":{"b":[{"c":[1,"x",null,[true,false],[]]},{"d":{}}]},"e":["",""],"n":-9223372036854775808,"u":"\\u00e9\\ud83d\\ude00"}')
write("config_json", "same", '{"a.b":1,"a":{"b":2}}')
write("config_json", "deep", ('{"a":'):rep(34) .. "1" .. ("}"):rep(34))

-- tokenizer.json: the parts of the published pipelines over a vocabulary of a few tokens
local function tokenizer(o)
  local parts = { '"model":{"type":"BPE"' .. (o.model or "") .. ',"vocab":{' .. o.vocab .. '},"merges":[' .. (o.merges or "") .. "]}" }
  for _, name in ipairs { "normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens" } do
    parts[#parts + 1] = o[name] and ('"%s":%s'):format(name, o[name])
  end
  return "{" .. table.concat(parts, ",") .. "}" .. (o.config and "\0" .. o.config or "")
end
local bytes_vocab = '"a":0,"b":1,"\196\160":2,"\195\131":3,"ab":4,"\196\160a":5,"<unk>":6,"1":7'
local byte_level = '{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}'
local function split(pattern, behavior, invert)
  return ('{"type":"Split","pattern":{"Regex":"%s"},"behavior":"%s","invert":%s}'):format(pattern, behavior, invert and "true" or "false")
end
local added = '[{"id":8,"content":"<s>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},'
  .. '{"id":9,"content":"</s>","special":true,"lstrip":true,"rstrip":true},{"id":10,"content":"Hi","special":false,"normalized":true,"single_word":true}]'
local template = '{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},'
  .. '{"SpecialToken":{"id":"</s>","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[8]},"</s>":{"id":"</s>","ids":[9]}}}'
local patterns = {
  llama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+",
  han = "[\\\\p{Han}&&[^a-z]]+|[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}]+|\\\\p{N}{1,3}|\\\\s+",
  deepseek = "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s+",
}
for name, pattern in pairs(patterns) do
  write("tokenizer_json", name, tokenizer { vocab = bytes_vocab, merges = '"a b","\196\160 a"', added_tokens = added, post_processor = template,
    model = ',"ignore_merges":true', normalizer = '{"type":"Sequence","normalizers":[{"type":"NFC"}]}', decoder = byte_level,
    pre_tokenizer = '{"type":"Sequence","pretokenizers":[' .. split(pattern, "Isolated") .. ',{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]}' })
end
local spm_vocab = '"<unk>":0,"\226\150\129":1,"a":2,"b":3,"ab":4,"\226\150\129a":5,"<0x0A>":6,"<0xC3>":7'
write("tokenizer_json", "spm", tokenizer { vocab = spm_vocab, merges = '["a","b"],["\226\150\129","a"]', added_tokens = added,
  model = ',"byte_fallback":true,"fuse_unk":true,"unk_token":"<unk>","dropout":null',
  normalizer = '{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\226\150\129"},{"type":"Replace","pattern":{"String":" "},"content":"\226\150\129"}]}',
  decoder = '{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\226\150\129"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}',
  post_processor = '{"type":"RobertaProcessing","cls":["<s>",8],"sep":["</s>",9]}' })
write("tokenizer_json", "metaspace", tokenizer { vocab = spm_vocab, added_tokens = added,
  pre_tokenizer = '{"type":"Metaspace","replacement":"\226\150\129","prepend_scheme":"first","split":true}',
  decoder = '{"type":"Metaspace","replacement":"\226\150\129","add_prefix_space":true}' })
for i, kind in ipairs { "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Strip", "ByteLevel" } do
  write("tokenizer_json", "normal-" .. kind:lower(), tokenizer { vocab = bytes_vocab, normalizer = ('{"type":"%s"}'):format(kind), added_tokens = i % 2 == 0 and added or nil })
end
local pres = { digits = '{"type":"Digits","individual_digits":true}', punctuation = '{"type":"Punctuation"}', whitespace = '{"type":"Whitespace"}',
  spaces = '{"type":"WhitespaceSplit"}', bert = '{"type":"BertPreTokenizer"}', char = '{"type":"CharDelimiterSplit","delimiter":"b"}',
  fixed = '{"type":"FixedLength","length":3}', bytes = '{"type":"ByteLevel"}', removed = split("\\\\s", "Removed"), previous = split("b", "MergedWithPrevious"),
  next = split("b", "MergedWithNext"), contiguous = split("[a-z]", "Contiguous", true) }
for name, pre in pairs(pres) do
  write("tokenizer_json", "pre-" .. name, tokenizer { vocab = bytes_vocab, merges = '"a b"', pre_tokenizer = pre, added_tokens = added })
end
write("tokenizer_json", "config", tokenizer { vocab = bytes_vocab, pre_tokenizer = byte_level,
  config = '{"add_bos_token":true,"add_eos_token":true,"bos_token":"<s>","eos_token":{"content":"</s>"},"model_max_length":1000000000000000019884624838656,'
    .. '"added_tokens_decoder":{"8":{"content":"<s>","special":true},"9":{"content":"</s>","normalized":true,"rstrip":true}}}' })
write("tokenizer_json", "tiktoken", "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\n4pY= 4\n\0" .. '{"added_tokens_decoder":{"5":{"content":"[BOS]","special":true}},"bos_token":"[BOS]"}')
local regexes = { [=[[\p{L}&&\p{Lu}]]=], [=[[\p{L}&&[^\p{Lu}b]]]=], [=[[^\P{Ll}a-c]]=], [=[[\P{L}\P{Lu}]]=], [=[[[a-c][\d\w]]]=], [=[[^[a][^b]]]=],
  [=[\W|[\D\S]]=], [=[\p{Alphabetic}\P{White_Space}]=], [=[\v\a\e\f\t\u00e9\x{e9}\x41]=], [=[(?i)ab]=],
  [=[(?i:b)(?:a)(?=b)(?!c)(?<=a)(?<!b)]=], [=[a{1,}b{2}c*?d++]=], [=[\Aa$|^b\z|.]=] }
for i, r in ipairs(regexes) do
  write("tokenizer_json", "regex-" .. i, tokenizer { vocab = '"a":0,"b":1', merges = "", pre_tokenizer = split((r:gsub("\\", "\\\\")), "Isolated") })
end
write("tokenizer_json", "empty-token", tokenizer { vocab = '"":7', added_tokens = added, pre_tokenizer = byte_level })

-- HTTP: heads; and what a client sends, behind two bytes that say how it is cut and answered
local function request(first, ...) return first .. " HTTP/1.1\r\nHost: h\r\n" .. table.concat({ ... }, "\r\n") .. (... and "\r\n" or "") .. "\r\n" end
local get = request("GET /x?a=b%20c", "X-Request-Id: mine-1")
local post = request("POST /v1/completions", "Content-Type: application/json", "Authorization: Bearer key-1234", "Content-Length: 5")
local chunked = request("POST /y", "Transfer-Encoding: chunked")
write("http_head", "get", get)
write("http_head", "post", post)
write("http_head", "chunked", chunked)
write("http_head", "old", "GET /%c3%a4 HTTP/1.0\r\n\r\n")
write("http_head", "two-lengths", request("POST /x", "Content-Length: 5", "Content-Length: 6"))
write("http_head", "colon", request("GET /x", ":", "GET /y HTTP/1.1", "Host: h"))
local body = "5\r\nhello\r\n3;a=b\r\n123\r\n0\r\n\r\n"
write("http_server", "pipelined", "\1\0" .. get .. post .. "hello" .. get)
write("http_server", "streams", "\2\3" .. post .. "hello" .. get .. get)
write("http_server", "chunked", "\3\0" .. chunked .. body .. get)
write("http_server", "trailers", "\3\1" .. chunked .. "1\r\na\r\n0\r\nA: b\r\n\r\n" .. get)
write("http_server", "gone", "\4\8" .. get .. post .. "hell")
write("http_server", "health", "\5\0" .. request "GET /health" .. request "HEAD /x" .. request "HEAD /health" .. get)
write("http_server", "old", "\6\0GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /y HTTP/1.0\r\n\r\n")
write("http_server", "expect", "\7\0" .. request("POST /x", "Expect: 100-continue", "Content-Length: 5") .. "hello")
write("http_server", "smuggled", "\8\0" .. request("POST /x", "Content-Length: 6", "Transfer-Encoding: chunked") .. "0\r\n\r\nG" .. get)
write("http_server", "colon", "\9\0" .. request("GET /x", ":") .. get)
write("http_server", "huge", "\10\0" .. request("POST /x", "Content-Length: 3000") .. ("a"):rep(3000) .. get)
