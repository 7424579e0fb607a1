-- luacheck: ignore 212 241 631
---@meta
-- Types for editors (LuaCATS). The entries of pl.op are generated from core/pl_ops.h (build/gen/ops_meta.lua).

---@class pl.tensor
---@field shape integer[]
local tensor = {}
function tensor:close() end
---@return string
function tensor:type() end
---@param axis? integer
---@return integer|integer[]
function tensor:size(axis) end
---@return integer
function tensor:count() end
---@return string # "f32[2,3]"
function tensor:describe() end
---@param axis integer from 1
---@param from integer from 0
---@param n integer
---@return pl.tensor
function tensor:slice(axis, from, n) end
---@return pl.tensor
function tensor:reshape(...) end
---@param parts integer[]
---@param axis? integer
---@return pl.tensor ...
function tensor:split(parts, axis) end
---@param h integer
---@return pl.tensor # [T,h*D] as [T,h,D]
function tensor:heads(h) end
---@return pl.tensor # [T,H,D] as [T,H*D]
function tensor:flat() end
---@param dtype "f32"|"f16"|"bf16"
---@return pl.tensor
function tensor:to(dtype) end
---@return number[]
function tensor:values() end
---@return number
function tensor:at(...) end

---@class pl.kv
---@field pos pl.tensor
---@field rows pl.tensor
local kv = {}
---@param k pl.tensor
---@param v pl.tensor
function kv:append(k, v) end

---@class pl.meta # a checkpoint's metadata, as dims(meta) sees it
---@field format "gguf"|"hf"
---@field arch string
local meta = {}
---@return any
function meta:get(hf, gguf) end
---@return number
function meta:num(hf, gguf, default) end
---@return integer
function meta:int(hf, gguf, default) end
---@return boolean
function meta:has(weight) end
---@return integer[]
function meta:shape(weight) end

---@class pl.generated
---@field text string
---@field ids integer[]
---@field finish "stop"|"length"|"cancelled"|"error"
---@field prompt_tokens integer
---@field prefill_s number
---@field decode_s number

---@class pl.generate
---@field prompt? string|integer[]
---@field ids? integer[]
---@field max_tokens? integer
---@field temperature? number
---@field top_p? number
---@field min_p? number
---@field top_k? integer
---@field seed? integer
---@field repetition_penalty? number
---@field presence_penalty? number
---@field frequency_penalty? number
---@field logit_bias? table<integer, number>
---@field logprobs? integer
---@field stop? integer[]
---@field ignore_eos? boolean
---@field stream? fun(text: string)

---@class pl.model
local model = {}
---@param o pl.generate|string
---@return pl.generated
function model:generate(o) end
---@param prompt string|integer[]
---@param o? { pooling?: "last"|"mean", dimensions?: integer }
---@return pl.tensor # [D] or [dimensions], of length 1
function model:embed(prompt, o) end
---@return "last"|"mean"|nil # what embeddings are made of; nil: the recipe's forward returns no hidden states
function model:pooling() end
---@param o table # messages, tools, add_generation_prompt (true unless said otherwise), and what else the template knows
---@return string # the prompt that the model's chat template makes; raises what the template raises
function model:render(o) end
---@param prompt string|integer[]
---@return pl.tensor # [V]
function model:logits(prompt) end
---@param prompt string|integer[]
---@param top? integer
---@return { tokens: integer[], nll: number?, nlls: number[], top: number[][], logsumexp: number }
function model:score(prompt, top) end
---@return table
function model:plan() end
---@param o? { steps: integer } keep the last so many steps from now on; 0: none
---@return pl.prof? # without o: the steps that are kept
function model:prof(o) end
function model:close() end

---@class pl.prof.step
---@field number integer
---@field start_s number
---@field total_s number
---@field tokens integer
---@field spans integer
---@field rows integer
---@field parts table<"plan"|"begin"|"ops"|"commit"|"sample"|"publish"|"scrub", number> # seconds
---@field op_s number[] # seconds of each op of the program

---@class pl.prof # prints as a summary
---@field name string
---@field file string
---@field program { name: string, line: integer }[]
---@field steps pl.prof.step[]
local prof = {}
---@param step? integer of one step alone
---@return { steps: integer, tokens: integer, seconds: number, parts: table[], ops: table[] }
function prof:summary(step) end
---@return string # JSON, for chrome://tracing and Perfetto
function prof:chrome() end
---@param path string
function prof:save(path) end

---@class pl
---@field op pl.op
local pl = {}
---@param path string
---@param o? { recipe: string, weights: string, act: "f32"|"bf16"|"int8"|"int15", kv: "f32"|"bf16", batch: integer, tokens: integer, context: integer, threads: integer, path: string }
---@return pl.model
function pl.load(path, o) end
---@param path string
---@param o? { out: string, recipe: string, weights: string, act: string, path: string, threads: integer, progress: function }
---@return string, integer # path and bytes of the packed file
function pl.pack(path, o) end
---@param values table
---@param dtype? string
---@return pl.tensor
function pl.tensor(values, dtype) end
---@param shape integer[]
---@param dtype? string
---@return pl.tensor
function pl.zeros(shape, dtype) end
---@param f function
function pl.scope(f, ...) end
---@param o { layers: integer, heads: integer, key_dim: integer, value_dim: integer, page: integer?, context: integer?, dtype: string? }
---@return pl.kv
function pl.kv(o) end
---@param o { threads: integer?, path: string? }
function pl.device(o) end
---@param t table<string, any>
---@return table
function pl.dims(t) end
---@param class string
---@param name string
---@param shape integer[]
---@param cut? integer
---@param options? { pairs: integer?, plus: number? }
---@return pl.tensor
function pl.weight(class, name, shape, cut, options) end
---@param n integer
---@return fun(): integer?
function pl.each_layer(n) end
---@param numbers number[]
---@return pl.tensor
function pl.const(numbers) end
---@param x pl.tensor
---@return pl.tensor
function pl.sum_ranks(x) end
---@param t table
function pl.pool(t) end
---@param t table
function pl.recipe(t) end
---@param t table
function pl.integrity(t) end

return pl
