-- Figures of an engine and its HTTP server as Prometheus reads them; by option also under the names that vLLM has given
-- them, which gateways look for.
local abi = require "pl.abi"
local C = abi.C
local M = {}

local finish = { "stop", "length", "cancelled", "error", "deadline", "integrity" } -- PL_FINISH_*, from 1

local function escape(s) return (s:gsub('[\\"\n]', { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" })) end
local function number(v)
  v = tonumber(v)
  return v % 1 == 0 and math.abs(v) < 2 ^ 53 and ("%d"):format(v) or ("%.9g"):format(v)
end

-- name, type, help, value(m, s)
local function field(k) return function(m) return m[k] end end
local rows = {
  { "steps_total", "counter", "Steps of the engine.", field "steps" },
  { "step_seconds_total", "counter", "Time spent in steps.", field "step_s" },
  { "prompt_tokens_total", "counter", "Tokens of prompts that were computed.", field "prompt_tokens" },
  { "cached_tokens_total", "counter", "Tokens of prompts that the prefix cache had.", field "cached_tokens" },
  { "generation_tokens_total", "counter", "Tokens of answers.", field "out_tokens" },
  { "requests_submitted_total", "counter", "Requests that the engine took.", field "submitted" },
  { "requests_refused_total", "counter", "Requests that found no place.", field "refused" },
  { "preemptions_total", "counter", "Requests that gave up their pages.", field "preempted" },
  { "page_mismatches_total", "counter", "Pages that were found in other hands.", field "mismatches" },
  { "damaged_pages_total", "counter", "Pages whose digest was wrong.", field "damaged_pages" },
  { "evicted_pages_total", "counter", "Pages that the prefix cache gave back.", field "evicted_pages" },
  { "requests_running", "gauge", "Requests that are being computed.", field "n_running" },
  { "requests_waiting", "gauge", "Requests that wait.", field "n_waiting" },
  { "requests_tokenising", "gauge", "Requests whose prompt is still a text.", field "n_tokenising" },
  { "pages_free", "gauge", "Pages that nobody holds.", function(m) return m.pages.free end },
  { "pages_owned", "gauge", "Pages that a request or the prefix cache holds.", function(m) return m.pages.owned end },
  { "pages_quarantined", "gauge", "Pages that are not used for now.", function(m) return m.pages.quarantined end },
  { "pages_idle", "gauge", "Pages that the prefix cache alone holds.", field "idle_pages" },
}
for _, where in ipairs { "host", "disk" } do
  for _, r in ipairs { { "hits_total", "counter", "Pages that came back from it.", "hits" },
    { "stored_total", "counter", "Pages that were copied there.", "stored" },
    { "dropped_total", "counter", "Pages that it gave up for others.", "dropped" },
    { "damaged_total", "counter", "Pages that were not what their digest said, and were not used.", "damaged" },
    { "errors_total", "counter", "Errors that the operating system reported.", "errors" },
    { "pages", "gauge", "Pages that it holds.", "pages" },
    { "capacity_pages", "gauge", "Pages that it has room for.", "capacity" } } do
    rows[#rows + 1] = { ("tier_%s_%s"):format(where, r[1]), r[2], r[3], function(m) return m[where][r[4]] end }
  end
end
local hists = {
  { "time_to_first_token_seconds", "From arrival to the first token.", "ttft_s" },
  { "inter_token_latency_seconds", "Between tokens of an answer.", "itl_s" },
  { "e2e_request_latency_seconds", "From arrival to the end.", "e2e_s" },
  { "request_queue_time_seconds", "From arrival to the first step.", "queue_s" },
  { "request_prompt_tokens", "Length of prompts.", "prompt_len" },
  { "request_generation_tokens", "Length of answers.", "out_len" },
  { "iteration_tokens_total", "Tokens of a step.", "step_tokens" },
}
local served = {
  { "http_connections_total", "counter", "connections" }, { "http_requests_total", "counter", "requests" },
  { "http_refused_total", "counter", "refused" }, { "http_overloads_total", "counter", "overloads" },
  { "http_unauthorized_total", "counter", "unauthorized" }, { "http_clients_gone_total", "counter", "gone" },
  { "http_slow_clients_total", "counter", "slow" }, { "http_timeouts_total", "counter", "timeouts" },
  { "http_log_dropped_total", "counter", "log_dropped" }, { "http_bytes_in_total", "counter", "bytes_in" },
  { "http_bytes_out_total", "counter", "bytes_out" }, { "http_connections", "gauge", "n_connections" },
  { "http_requests_open", "gauge", "n_open" },
}
local vllm = {
  { "num_requests_running", "gauge", field "n_running" }, { "num_requests_waiting", "gauge", field "n_waiting" },
  { "prompt_tokens_total", "counter", function(m) return m.prompt_tokens + m.cached_tokens end },
  { "generation_tokens_total", "counter", field "out_tokens" },
  { "num_preemptions_total", "counter", field "preempted" },
  { "prefix_cache_queries", "counter", function(m) return m.prompt_tokens + m.cached_tokens end },
  { "prefix_cache_hits", "counter", field "cached_tokens" },
  { "kv_cache_usage_perc", "gauge", function(m)
    local p = m.pages
    local total = tonumber(p.free + p.owned + p.quarantined)
    return total > 0 and (tonumber(p.owned) - tonumber(m.idle_pages)) / total or 0
  end },
}

local function histogram(out, name, label, h)
  local seen = 0
  for i = 0, C.PL_HIST_BUCKETS - 2 do
    seen = seen + tonumber(h.bucket[i])
    if h.bucket[i] > 0 or i % 4 == 0 then
      out[#out + 1] = ('%s_bucket{%s,le="%.6g"} %d'):format(name, label, h.first * 2 ^ (i / 2), seen)
    end
  end
  out[#out + 1] = ('%s_bucket{%s,le="+Inf"} %s'):format(name, label, number(h.n))
  out[#out + 1] = ("%s_sum{%s} %s"):format(name, label, number(h.sum))
  out[#out + 1] = ("%s_count{%s} %s"):format(name, label, number(h.n))
end

local function head(out, name, kind, help)
  if help then out[#out + 1] = ("# HELP %s %s"):format(name, help) end
  out[#out + 1] = ("# TYPE %s %s"):format(name, kind)
end

local function group(out, prefix, label, m)
  for _, h in ipairs(hists) do
    head(out, prefix .. h[1], "histogram", h[2])
    histogram(out, prefix .. h[1], label, m[h[3]])
  end
end

--- The text of /metrics. stats: of pl.http.
function M.text(engine, stats, model, vllm_names)
  local m, out = abi.new "pl_metrics", {}
  local label = ('model_name="%s"'):format(escape(model))
  C.pl_engine_metrics(engine.ptr, m)
  for _, r in ipairs(rows) do
    head(out, "perilune_" .. r[1], r[2], r[3])
    out[#out + 1] = ("perilune_%s{%s} %s"):format(r[1], label, number(r[4](m)))
  end
  head(out, "perilune_requests_finished_total", "counter", "Requests that ended, by how.")
  for i, why in ipairs(finish) do
    out[#out + 1] = ('perilune_requests_finished_total{%s,finished_reason="%s"} %s'):format(label, why,
      number(m.finished[i]))
  end
  head(out, "perilune_policy_failures_total", "counter", "Steps in which the policy failed.")
  out[#out + 1] = ("perilune_policy_failures_total{%s} %s"):format(label, number(engine.policy_counter.failures))
  for _, r in ipairs(served) do
    head(out, "perilune_" .. r[1], r[2])
    out[#out + 1] = ("perilune_%s %s"):format(r[1], number(stats[r[3]]))
  end
  group(out, "perilune_", label, m)
  if vllm_names then
    for _, r in ipairs(vllm) do
      head(out, "vllm:" .. r[1], r[2])
      out[#out + 1] = ("vllm:%s{%s} %s"):format(r[1], label, number(r[3](m)))
    end
    head(out, "vllm:request_success_total", "counter")
    for i = 1, 2 do
      out[#out + 1] = ('vllm:request_success_total{%s,finished_reason="%s"} %s'):format(label, finish[i],
        number(m.finished[i]))
    end
    group(out, "vllm:", label, m)
  end
  out[#out + 1] = ""
  return table.concat(out, "\n")
end

return M
