"""OpenAI's Python client and curl against `perilune serve` on SmolLM2: each endpoint and option, streamed and not; each
answer against OpenAI's published shapes, twice: the client's own types read strictly, and tests/data/openai.json; each
parameter that the client knows is honoured or refused by its name."""
import array, asyncio, base64, json, math, os, re, subprocess, sys, tempfile, traceback
import jsonschema, openai
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_params
from openai.types import completion_create_params as text_params, embedding_create_params as embed_params

BUILD, MODEL = os.environ["PL_BUILD"], os.environ["PL_MODEL"]
KEY, OTHER = "first-key-1234", "second-key-1234"
TYPES = {"chat.completion": ChatCompletion, "chat.completion.chunk": ChatCompletionChunk,
         "text_completion": Completion, "text_completion.chunk": Completion, "model": Model, "embeddings": CreateEmbeddingResponse}
with open("tests/data/openai.json") as f:
    SCHEMAS = json.load(f)
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "system", "content": "You answer briefly."},
            {"role": "user", "content": "Name three colours of the rainbow."}]
PROMPT = "The three primary colours are"


class Server:
    def __init__(self, *args):
        self.keys = tempfile.NamedTemporaryFile("w")
        self.keys.write(f"{KEY} alice\n{OTHER} bob\n")
        self.keys.flush()
        self.process = subprocess.Popen([f"{BUILD}/perilune", "serve", MODEL, "--port", "0", "--name", "smol", "--no-log",
                                         "--keys", self.keys.name, *args], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+", line).group()
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0, timeout=300)

    def curl(self, path, body=None, *args):
        """Status, body, headers, as curl has them."""
        if body is not None:
            args += ("-H", "Content-Type: application/json", "--data-binary", body if isinstance(body, str) else json.dumps(body))
        out = subprocess.run(["curl", "-sSN", "-i", "-H", f"Authorization: Bearer {KEY}", "-H", "Expect:", *args,
                              self.url + path], capture_output=True, check=True).stdout.decode()
        head, _, text = out.partition("\r\n\r\n")
        return int(head.split()[1]), text, dict((k.lower(), v) for k, v in re.findall(r"(?m)^([\w-]+): (.*?)\r?$", head))

    def metric(self, pattern):
        found = re.search(rf"(?m)^{pattern} (\S+)$", self.curl("/metrics")[1])
        return float(found.group(1)) if found else 0

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0, "a drained server's exit code"


def no_extras(value, where, allowed=()):
    """A published type takes fields that it does not know: none may be there."""
    for k in getattr(value, "model_extra", None) or {}:
        assert k in allowed, f"{where}: '{k}' is no field of {type(value).__name__}"
    if isinstance(value, list):
        for v in value:
            no_extras(v, where, allowed)
    elif hasattr(value, "model_fields_set"):
        for k in value.model_fields_set:
            no_extras(getattr(value, k), f"{where}.{k}", allowed)


def shape(data, name):
    jsonschema.validate(data, {"$ref": f"#/$defs/{name}", "$defs": SCHEMAS["$defs"]})
    if name in TYPES:
        chunk = name == "text_completion.chunk"  # its published type has no null where an answer ends
        if chunk:
            data = {**data, "choices": [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in data["choices"]]}
        no_extras(TYPES[name].model_validate(data, strict=True), name, ("max_model_len",))


def frames(text):
    """The frames of an event stream, each of exactly `data: JSON`, a blank line between, [DONE] last."""
    parts = text.split("\n\n")
    assert parts[-1] == "" and parts[-2] == "data: [DONE]", text[-200:]
    assert all(p.startswith("data: {") and "\n" not in p for p in parts[:-2])
    return [json.loads(p[6:]) for p in parts[:-2]]


def both(s, path, **body):
    """One request in both forms, by curl: the same text, end and usage. Returns the whole answer."""
    kind = "chat.completion" if path == CHAT else "text_completion"
    body = {"model": "smol", "temperature": 0, "seed": 1, **body}
    if path == CHAT:
        body.setdefault("messages", MESSAGES)
    else:
        body.setdefault("prompt", PROMPT)
    status, text, _ = s.curl(path, body)
    assert status == 200, text
    whole = json.loads(text)
    shape(whole, kind)
    status, text, headers = s.curl(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text
    list_ = frames(text)
    assert len({(f["id"], f["created"]) for f in list_}) == 1
    for f in list_:
        shape(f, kind + ".chunk")
    assert all(f["usage"] is None for f in list_[:-1]) and list_[-1]["choices"] == []
    for k in "prompt_tokens", "completion_tokens", "total_tokens":
        assert list_[-1]["usage"][k] == whole["usage"][k], (k, list_[-1]["usage"], whole["usage"])
    for c in whole["choices"]:
        mine = [x for f in list_ for x in f["choices"] if x["index"] == c["index"]]
        said = "".join((x["delta"].get("content") or "") if path == CHAT else x["text"] for x in mine)
        assert said == (c["message"]["content"] if path == CHAT else c["text"]), (said, c)
        assert [x["finish_reason"] for x in mine if x["finish_reason"]] == [c["finish_reason"]]
        assert mine[-1]["finish_reason"], "the last frame of a choice says how it ended"
        if path == CHAT:
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in x["delta"] for x in mine[1:])
    return whole


def content(whole, i=0):
    c = whole["choices"][i]
    return c["message"]["content"] if "message" in c else c["text"]


# Endpoints and options ---------------------------------------------------------------------------------------

def endpoints(s):
    models = s.client.models.list()
    assert [m.id for m in models] == ["smol"] and s.client.models.retrieve("smol").owned_by == "perilune"
    shape(json.loads(s.curl("/v1/models")[1]), "models")
    health = json.loads(s.curl("/health")[1])
    assert health["live"] and health["ready"]
    assert "version" in json.loads(s.curl("/version")[1])
    ids = json.loads(s.curl("/tokenize", {"prompt": PROMPT})[1])
    assert ids["count"] == len(ids["tokens"]) > 0
    assert json.loads(s.curl("/detokenize", {"tokens": ids["tokens"]})[1])["prompt"] == PROMPT
    assert s.metric(r"perilune_requests_finished_total\{.*?\}") >= 0
    by_ids = both(s, TEXT, prompt=ids["tokens"], max_tokens=8)
    assert content(by_ids) == content(both(s, TEXT, max_tokens=8))


def options(s):
    base = both(s, CHAT, max_completion_tokens=24)
    text = content(base)
    answer = s.client.chat.completions.create(model="smol", messages=MESSAGES, temperature=0, max_completion_tokens=24)
    assert answer.choices[0].message.content == text and answer.usage.total_tokens == base["usage"]["total_tokens"]
    parts = [c.choices[0].delta.content or "" for c in s.client.chat.completions.create(
        model="smol", messages=MESSAGES, temperature=0, max_tokens=24, stream=True)]
    assert "".join(parts) == text and len(parts) > 5
    # stop texts over the borders of tokens: each part of three bytes of the answer
    before = s.metric(r'perilune_requests_finished_total\{[^}]*finished_reason="cancelled"[^}]*\}')
    for at in range(1, min(len(text), 40), 5):
        stop = text[at:at + 3]
        got = both(s, CHAT, max_completion_tokens=24, stop=["\x01", stop])
        assert content(got) == text[:text.index(stop)] and got["choices"][0]["finish_reason"] == "stop"
    assert content(both(s, TEXT, max_tokens=12, stop="never there")) == content(both(s, TEXT, max_tokens=12))
    assert s.metric(r'perilune_requests_finished_total\{[^}]*finished_reason="cancelled"[^}]*\}') == before
    # n and seed: n answers are those of n seeds
    three = both(s, CHAT, n=3, seed=5, temperature=1, max_tokens=10)
    for i in range(3):
        assert content(both(s, CHAT, seed=5 + i, temperature=1, max_tokens=10)) == content(three, i)
    assert len({content(three, i) for i in range(3)}) > 1
    # logprobs
    for e in both(s, CHAT, max_tokens=6, logprobs=True, top_logprobs=4)["choices"][0]["logprobs"]["content"]:
        assert len(e["top_logprobs"]) == 4 and e["top_logprobs"][0]["token"] == e["token"]
    lp = both(s, TEXT, max_tokens=6, logprobs=2)["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == 6 and "".join(lp["tokens"]) == content(both(s, TEXT, max_tokens=6))
    # logit_bias, penalties
    ids = json.loads(s.curl("/tokenize", {"prompt": " blue"})[1])["tokens"]
    assert content(both(s, TEXT, max_tokens=3, logit_bias={str(ids[0]): 100})).startswith(" blue")
    plain = content(both(s, TEXT, max_tokens=40, ignore_eos=True))
    for o in {"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 1.5}:
        assert content(both(s, TEXT, max_tokens=40, ignore_eos=True, **o)) != plain, o
    for o in {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}:
        assert content(both(s, TEXT, max_tokens=40, ignore_eos=True, temperature=1, **o)) == plain, o
    # the end of an answer
    assert both(s, CHAT, max_tokens=60, ignore_eos=True)["usage"]["completion_tokens"] == 60
    assert both(s, CHAT, max_tokens=60, min_tokens=50)["usage"]["completion_tokens"] >= 50
    assert content(both(s, TEXT, max_tokens=4, echo=True)).startswith(PROMPT)
    assert len(both(s, TEXT, max_tokens=4, prompt=["One", "Two"])["choices"]) == 2
    # cached tokens: of the second time, and not under another salt or key
    long = "the quick brown fox jumps over the lazy dog. " * 30

    def cached(key=KEY, **o):
        client = s.client.with_options(api_key=key)
        r = client.completions.create(model="smol", prompt=long, max_tokens=1, temperature=0, **o)
        return r.usage.prompt_tokens_details.cached_tokens, r.choices[0].text
    cold, first = cached()
    warm, second = cached()
    assert cold == 0 and warm > 100 and first == second, (cold, warm)
    assert cached(extra_body={"cache_salt": "x"}) == (0, first)
    assert cached(OTHER)[0] == 0, "another tenant's cache"
    assert content(both(s, TEXT, max_tokens=3, priority=-5)) == content(both(s, TEXT, max_tokens=3))


def embeddings(s):
    def ask(input, **o):
        status, text, _ = s.curl(EMBED, {"model": "smol", "input": input, **o})
        assert status == 200, text
        whole = json.loads(text)
        shape(whole, "embeddings.base64" if o.get("encoding_format") == "base64" else "embeddings")
        return whole

    def vector(e):
        if isinstance(e, str):
            e = array.array("f", base64.b64decode(e, validate=True))
        return list(array.array("f", e))  # a list may hold more digits than an f32

    texts = ["The cat sat on the mat.", "A cat is sitting on a rug.", "Interest rates rose by half a point."] * 12
    ids = [json.loads(s.curl("/tokenize", {"prompt": t})[1])["tokens"] for t in texts]
    alone = [vector(ask(t)["data"][0]["embedding"]) for t in texts[:3]]
    for v in alone:
        assert len(v) == 576 and abs(sum(x * x for x in v) - 1) < 1e-5
    near, far = (sum(a * b for a, b in zip(alone[0], v)) for v in alone[1:])
    assert near > far, (near, far)
    n = sum(len(i) for i in ids)
    for input in texts, ids:
        for form in "float", "base64":
            got = ask(input, encoding_format=form)
            assert got["usage"] == {"prompt_tokens": n, "total_tokens": n}
            assert [d["index"] for d in got["data"]] == list(range(36))
            assert [vector(d["embedding"]) for d in got["data"]] == alone * 12
    # OpenAI's client asks for base64 unless told otherwise, and reads it with numpy where it has that
    for o in {}, {"encoding_format": "float"}, {"encoding_format": "base64"}:
        got = s.client.embeddings.create(model="smol", input=texts, **o)
        assert [vector(d.embedding) for d in got.data] == alone * 12 and got.usage.prompt_tokens == n, o
    short = s.client.embeddings.create(model="smol", input=ids[0], dimensions=64, encoding_format="float").data[0].embedding
    size = math.sqrt(sum(x * x for x in alone[0][:64]))
    assert len(short) == 64 and max(abs(a - b / size) for a, b in zip(short, alone[0])) < 1e-6
    for name, bad in {"input": "", "dimensions": 577, "encoding_format": "hex"}.items():
        e = raises(openai.BadRequestError, lambda: s.client.embeddings.create(**{"model": "smol", "input": "a", name: bad}),
                   param=name)
        assert name in e.message
    e = raises(openai.BadRequestError, lambda: s.client.embeddings.create(model="smol", input=["a", "word " * 4000]),
               param="input", code="context_length_exceeded")
    assert re.search(r"\d+ tokens, the context holds 2048", e.message)


def raises(kind, f, **want):
    try:
        f()
    except kind as e:
        assert type(e) is kind, repr(e)
        for k, v in want.items():
            assert getattr(e, k) == v, (k, getattr(e, k), v)
        shape({"error": e.body}, "error")
        return e
    raise AssertionError(f"no {kind.__name__}")


def errors(s):
    def chat(**o):
        o = {"model": "smol", "messages": MESSAGES, "max_tokens": 2, **o}
        return lambda: s.client.chat.completions.create(**o)
    raises(openai.NotFoundError, chat(model="gpt-4"), param="model", code="model_not_found")
    for name, bad in {"temperature": -1, "top_p": 2, "n": 0, "logprobs": 3, "max_tokens": -1, "stop": [1], "seed": 0.5,
                      "logit_bias": {"x": 1}, "presence_penalty": 9}.items():
        e = raises(openai.BadRequestError, chat(**{name: bad}), param=name)
        assert name in e.message
    e = raises(openai.BadRequestError, chat(messages=[{"role": "user", "content": "word " * 4000}]),
               code="context_length_exceeded")
    assert re.search(r"\d+ tokens", e.message)
    bad = s.client.with_options(api_key="no-such-key-99")
    raises(openai.AuthenticationError, bad.models.list)
    for body in "{", "[]", '"x"', "":
        status, text, _ = s.curl(CHAT, body)
        assert status == 400, (body, status)
        shape(json.loads(text), "error")
    assert s.curl("/nothing")[0] == 404 and s.curl(CHAT)[0] == 405


def overload(_):
    s = Server("--batch", "1", "--queue", "0", "--context", "2048")
    stream = s.client.completions.create(model="smol", prompt="a", max_tokens=2000, stream=True, temperature=0,
                                         extra_body={"ignore_eos": True})
    next(iter(stream))
    e = raises(openai.RateLimitError, lambda: s.client.completions.create(model="smol", prompt="b", max_tokens=1))
    assert int(e.response.headers["retry-after"]) >= 1
    stream.close()
    s.stop()


async def together(s):
    """Sixteen streams at once: each says what it says alone."""
    prompts = [f"Question {i}: what is {i} plus {i * 7 % 5}? Answer:" for i in range(16)]

    def ask(client, i, **o):
        return client.completions.create(model="smol", prompt=prompts[i], max_tokens=12 + i, seed=i,
                                         temperature=(i % 2) * 0.8, **o)
    alone = [ask(s.client, i).choices[0].text for i in range(16)]
    async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key=KEY, max_retries=0, timeout=300) as client:
        async def one(i):
            return "".join([c.choices[0].text async for c in await ask(client, i, stream=True)])
        got = await asyncio.gather(*(one(i) for i in range(16)))
    assert got == alone, [(a, b) for a, b in zip(got, alone) if a != b]


def streams(s):
    asyncio.run(together(s))


# Parameters ----------------------------------------------------------------------------------------------------

# Values that are honoured; and values that get a 400 with the parameter's name.
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
COMMON = {"model": (["smol"], []), "frequency_penalty": ([1], [3]), "logit_bias": ([{"5": -1}], [{"a": 1}]),
          "max_tokens": ([2], [-1]), "n": ([2], [0]), "presence_penalty": ([1], ["x"]), "seed": ([1], ["x"]),
          "stop": (["a", ["a", "b"]], [1]), "stream": ([False, True], ["x"]), "stream_options": ([], [{"include_usage": True}]),
          "temperature": ([0.5], [-1]), "top_p": ([0.5], [2]), "user": (["u"], [1])}
CHAT_FIELDS = {**COMMON, "messages": ([MESSAGES], [[], [{"role": "user"}]]), "logprobs": ([True], ["x"]),
               "max_completion_tokens": ([2], [-1]), "top_logprobs": ([], [3]),
               "audio": ([], [{"voice": "ash", "format": "wav"}]), "function_call": (["none"], ["auto"]),
               "functions": ([[]], [[{"name": "f"}]]), "metadata": ([{}, {"a": "b"}], ["x"]),
               "modalities": ([["text"]], [["text", "audio"]]), "moderation": ([], [{"model": "m"}]),
               "parallel_tool_calls": ([True, False], ["x"]),
               "prediction": ([], [{"type": "content", "content": "x"}]), "prompt_cache_key": (["k"], [1]),
               "prompt_cache_options": ([{"mode": "implicit"}], [{"mode": "explicit"}, {"ttl": "30m"}]),
               "prompt_cache_retention": (["in_memory"], ["24h"]), "reasoning_effort": ([], ["low"]),
               "response_format": ([{"type": "text"}], [{"type": "json_object"}, {"type": "json_schema",
                                    "json_schema": {"name": "x", "schema": {}}}]),
               "safety_identifier": (["x"], [1]), "service_tier": (["auto", "default"], ["flex", "priority"]),
               "store": ([False], [True]), "tool_choice": (["none", "auto"], ["required", TOOL]),
               "tools": ([[]], [[TOOL]]), "verbosity": ([], ["low"]), "web_search_options": ([], [{}])}
TEXT_FIELDS = {**COMMON, "prompt": ([PROMPT, ["a", "b"], [1, 2], [[1], [2]]], [[], [-1], {"a": 1}]),
               "best_of": ([1], [2]), "echo": ([True], ["x"]), "logprobs": ([1], [99]), "suffix": ([""], ["x"])}
EMBED_FIELDS = {"model": (["smol"], []), "user": (["u"], [1]), "dimensions": ([1, 576], [0, 577]),
                "encoding_format": (["float", "base64"], ["x"]),
                "input": ([PROMPT, ["a", "b"], [1, 2], [[1], [2]]], [[], [-1], {"a": 1}, "", [""], [[]]])}


def parameters(s):
    for path, module, fields in (CHAT, chat_params, CHAT_FIELDS), (TEXT, text_params, TEXT_FIELDS):
        known = set()
        for t in "CompletionCreateParamsBase", "CompletionCreateParamsNonStreaming", "CompletionCreateParamsStreaming":
            known |= set(getattr(module, t).__annotations__)
        assert known == set(fields), (path, known ^ set(fields))
        base = {"messages": MESSAGES} if path == CHAT else {"prompt": PROMPT}
        for name, (fine, bad) in fields.items():
            assert fine or bad
            limit = {} if name == "max_completion_tokens" else {"max_tokens": 2}
            for v in fine + [None] * (name not in ("messages", "prompt")):
                status, text, _ = s.curl(path, {**base, **limit, name: v})
                assert status == 200, (path, name, v, text)
            for v in bad:
                status, text, _ = s.curl(path, {**base, **limit, name: v})
                assert status == 400, (path, name, v, status, text)
                e = json.loads(text)["error"]
                assert e["param"] == name and name in e["message"], (name, v, e)
        assert s.curl(path, {**base, "max_tokens": 2, "nobody_knows_it": 1})[0] == 200
    assert set(embed_params.EmbeddingCreateParams.__annotations__) == set(EMBED_FIELDS)
    for name, (fine, bad) in EMBED_FIELDS.items():
        for v in fine + [None] * (name != "input"):
            assert s.curl(EMBED, {"input": "a", name: v})[0] == 200, (name, v)
        for v in bad:
            status, text, _ = s.curl(EMBED, {"input": "a", name: v})
            assert status == 400 and json.loads(text)["error"]["param"] == name, (name, v, text)
    # tools go into the template where no call may come of them
    with_tools = both(s, CHAT, max_tokens=2, tools=[TOOL], tool_choice="none")
    assert with_tools["choices"][0]["message"]["content"]


def main():
    s, failed = Server("--batch", "16", "--queue", "64", "--context", "2048"), 0
    tests = [endpoints, options, embeddings, errors, parameters, streams, overload]
    if len(sys.argv) > 1:  # some by name
        tests = [t for t in tests if t.__name__ in sys.argv[1:]]
    try:
        for test in tests:
            try:
                test(s)
                print("ok  ", test.__name__, flush=True)
            except Exception:
                failed += 1
                traceback.print_exc()
        s.stop()
    finally:
        s.process.kill()
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
