-- wrk posts prompts of the demo model, each connection its own sequence of them:
--   wrk -t2 -c100 -d30s --latency -s test/bench/serve.lua http://127.0.0.1:8080 -- examples/demo-model/held-out.txt 32
-- Ends with the statuses that came and the tokens that were answered.
local lines, tokens = {}, 32
local threads = {}

function setup(thread)
    thread:set("number", #threads)
    table.insert(threads, thread)
end

function init(args)
    for line in io.lines(args[1]) do
        if #line > 0 then lines[#lines + 1] = line end
    end
    tokens = tonumber(args[2]) or tokens
    math.randomseed(number + 1)
    bad, good, answered = 0, 0, 0
end

local function quote(s)
    return '"' .. s:gsub('[%c"\\]', function(c) return string.format("\\u%04x", c:byte()) end) .. '"'
end

function request()
    local line = lines[math.random(#lines)]
    local prompt = line:sub(1, math.random(20, 120)):gsub("[\128-\255]+$", "")
    local body = string.format('{"model":null,"prompt":%s,"max_tokens":%d,"temperature":0}', quote(prompt), tokens)
    return wrk.format("POST", "/v1/completions", { ["Content-Type"] = "application/json" }, body)
end

function response(status, headers, body)
    if status == 200 then
        good = good + 1
        answered = answered + (tonumber(body:match('"completion_tokens":%s*(%d+)')) or 0)
    else
        bad = bad + 1
    end
end

function done(summary, latency)
    local sum = { good = 0, bad = 0, answered = 0 }
    for _, t in ipairs(threads) do
        for name in pairs(sum) do sum[name] = sum[name] + t:get(name) end
    end
    local e = summary.errors
    io.write(string.format("answers %d, refused %d, socket errors %d, %.1f answers/s, %.0f tokens/s, p50 %.1f ms, p99 %.1f ms, p99/p50 %.2f\n",
        sum.good, sum.bad, e.connect + e.read + e.write + e.timeout, sum.good / summary.duration * 1e6,
        sum.answered / summary.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        latency:percentile(99) / latency:percentile(50)))
end
