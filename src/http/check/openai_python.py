"""The openai package: `pip install openai`; `python openai_python.py BASE_URL`."""

import openai
from pydantic import BaseModel

from checks import BASE, KEY, check, equal, run_all, true

URL = BASE + "/v1"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
MODEL = client.models.list().data[0].id
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Tell me a story."}]
SHORT = {"model": MODEL, "temperature": 0, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def texts(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@check
def models():
    listed = client.models.list()
    equal(client.models.retrieve(listed.data[0].id).id, MODEL)
    true(listed.data[0].created > 1_500_000_000, "created is not a time")
    try:
        client.models.retrieve("no-such/model")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError:
        pass


@check
def completion():
    answer = client.completions.create(prompt="Once upon", **SHORT)
    equal(answer.object, "text_completion")
    equal(answer.usage.completion_tokens, 6)
    equal(answer.choices[0].finish_reason, "length")


@check
def completion_streamed():
    whole = client.completions.create(prompt="Once upon", **SHORT).choices[0].text
    stream = client.completions.create(prompt="Once upon", stream=True, **SHORT)
    equal("".join(chunk.choices[0].text for chunk in stream), whole)


@check
def completion_of_token_ids_and_lists():
    answer = client.completions.create(prompt=[[5, 6, 7], [8, 9]], n=2, **SHORT)
    equal([choice.index for choice in answer.choices], [0, 1, 2, 3])
    equal(answer.usage.prompt_tokens, 5)
    answer = client.completions.create(prompt=["one", "two"], echo=True, **SHORT)
    true(answer.choices[1].text.startswith("two"), answer.choices[1].text)


@check
def completion_logprobs():
    answer = client.completions.create(prompt="Once upon", logprobs=2, **SHORT)
    logprobs = answer.choices[0].logprobs
    equal(len(logprobs.tokens), 6)
    true(all(len(top) >= 2 for top in logprobs.top_logprobs), "too few alternatives")
    true(all(value <= 0 for value in logprobs.token_logprobs), "a log probability above 0")


@check
def chat():
    answer = client.chat.completions.create(messages=CHAT, **SHORT)
    equal(answer.object, "chat.completion")
    equal(answer.choices[0].message.role, "assistant")
    true(answer.choices[0].message.content, "no content")
    true(answer.id.startswith("chatcmpl-"), answer.id)


@check
def chat_streamed():
    whole = client.chat.completions.create(messages=CHAT, **SHORT).choices[0].message.content
    chunks = list(client.chat.completions.create(messages=CHAT, stream=True, **SHORT))
    equal(texts(chunks), whole)
    equal(chunks[0].choices[0].delta.role, "assistant")
    equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1], "length")
    equal([chunk.usage for chunk in chunks], [None] * len(chunks))


@check
def chat_streamed_with_usage():
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(messages=CHAT, stream=True, stream_options=options, **SHORT))
    equal((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 6))


@check
def chat_stream_helper():
    with client.chat.completions.stream(messages=CHAT, **SHORT) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot
    true({"chunk", "content.delta", "content.done"} <= kinds, kinds)
    equal(final.choices[0].finish_reason, "length")


@check
def chat_stream_helper_with_logprobs_and_n():
    with client.chat.completions.stream(messages=CHAT, n=2, logprobs=True, top_logprobs=2, **SHORT) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot
    true({"logprobs.content.delta", "logprobs.content.done"} <= kinds, kinds)
    equal([len(choice.logprobs.content) for choice in final.choices], [6, 6])


@check
def chat_stream_closed_early():
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, stream=True, max_tokens=1000)
    next(iter(stream))
    stream.close()
    equal(client.chat.completions.create(messages=CHAT, **SHORT).usage.completion_tokens, 6)


@check
def raw_and_streaming_responses():
    raw = client.chat.completions.with_raw_response.create(messages=CHAT, **SHORT)
    true(raw.headers["content-type"].startswith("application/json"), raw.headers)
    true(raw.headers.get("x-request-id"), "no x-request-id")
    equal(raw.parse()._request_id, raw.headers["x-request-id"])
    with client.chat.completions.with_streaming_response.create(messages=CHAT, stream=True, **SHORT) as response:
        lines = [line for line in response.iter_lines() if line]
    equal(lines[-1], "data: [DONE]")


@check
def chat_logprobs():
    answer = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, **SHORT)
    content = answer.choices[0].logprobs.content
    equal([len(token.top_logprobs) for token in content], [3] * 6)
    equal(bytes(b for token in content for b in token.bytes).decode(errors="replace"), "".join(t.token for t in content))


@check
def choices_n():
    answer = client.chat.completions.create(
        model=MODEL, messages=CHAT, n=3, temperature=1, seed=1, max_completion_tokens=8, extra_body={"ignore_eos": True}
    )
    equal([choice.index for choice in answer.choices], [0, 1, 2])
    equal(answer.usage.completion_tokens, 24)
    stream = client.chat.completions.create(messages=CHAT, n=3, stream=True, **SHORT)
    equal({chunk.choices[0].index for chunk in stream if chunk.choices}, {0, 1, 2})


@check
def tools_accepted():
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(messages=CHAT, tools=TOOLS, tool_choice=choice, **SHORT)
        true(answer.choices[0].message.content is not None, "no content")
    tools = [openai.pydantic_function_tool(Answer)]
    try:
        with client.chat.completions.stream(messages=CHAT, tools=tools, **SHORT) as stream:
            stream.until_done()
    except openai.LengthFinishReasonError:
        pass  # The client's own, of any answer of strict tools that ends by max_tokens.


@check
def tool_messages_accepted():
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    client.chat.completions.create(messages=messages, tools=TOOLS, **SHORT)


@check
def roles_and_parts_accepted():
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "name": "al", "content": parts}]
    client.chat.completions.create(messages=messages, **SHORT)


@check
def fields_of_hosted_models_accepted():
    client.chat.completions.create(
        messages=CHAT,
        user="u",
        safety_identifier="s",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        reasoning_effort="low",
        verbosity="low",
        modalities=["text"],
        prompt_cache_key="k",
        stop=["\n\n", "END"],
        top_p=0.9,
        seed=3,
        frequency_penalty=0,
        presence_penalty=0,
        logit_bias={},
        response_format={"type": "text"},
        **SHORT,
    )


class Answer(BaseModel):
    value: int


def refused(param, call):
    try:
        call()
    except openai.BadRequestError as error:
        equal((error.status_code, error.param), (400, param))
        true(error.message and error.type == "invalid_request_error", error)
        return
    raise AssertionError(f"{param} was not refused")


LONG = {"model": MODEL, "messages": CHAT, "max_tokens": 400, "seed": 1}


def unless_refused(param, ask):
    """A server whose workers have no grammars refuses by name."""
    try:
        return ask()
    except openai.BadRequestError as error:
        equal(error.param, param)
        print(f"#   {param} is refused with 400")


@check
def structured_output_parsed():
    def ask():
        answer = client.chat.completions.parse(response_format=Answer, **LONG)
        true(isinstance(answer.choices[0].message.parsed, Answer), "not parsed")
        with client.chat.completions.stream(response_format=Answer, **LONG) as stream:
            equal(stream.get_final_completion().choices[0].message.parsed, answer.choices[0].message.parsed)
    # A worker without grammars says so without a field.
    unless_refused(None, ask)


@check
def forced_tools_called():
    # The package parses strict tools alone.
    tools = [openai.pydantic_function_tool(Answer)]
    named = {"type": "function", "function": {"name": "Answer"}}

    def ask():
        for choice in ("required", named):
            whole = client.chat.completions.parse(tools=tools, tool_choice=choice, parallel_tool_calls=False, **LONG).choices[0]
            equal((whole.finish_reason, len(whole.message.tool_calls)), ("tool_calls", 1))
            equal(whole.message.tool_calls[0].function.name, "Answer")
            with client.chat.completions.stream(tools=tools, tool_choice=choice, parallel_tool_calls=False, **LONG) as stream:
                calls = stream.get_final_completion().choices[0].message.tool_calls
            equal(calls[0].function.arguments, whole.message.tool_calls[0].function.arguments)
        true(isinstance(whole.message.tool_calls[0].function.parsed_arguments, Answer), whole)
    unless_refused("tool_choice", ask)


@check
def wrong_values_refused_by_name():
    create = client.chat.completions.create
    refused("temperature", lambda: create(model=MODEL, messages=CHAT, temperature=-1))
    refused("max_tokens", lambda: create(model=MODEL, messages=CHAT, max_tokens="many"))
    refused("top_logprobs", lambda: create(model=MODEL, messages=CHAT, top_logprobs=3))
    refused("n", lambda: create(model=MODEL, messages=CHAT, n=0))
    refused("stop", lambda: create(model=MODEL, messages=CHAT, stop=7, stream=True))
    refused("messages", lambda: create(model=MODEL, messages=[]))


@check
def unknown_model_is_404():
    try:
        client.chat.completions.create(messages=CHAT, **{**SHORT, "model": "gpt-none"})
    except openai.NotFoundError as error:
        true("gpt-none" in error.message, error.message)
        return
    raise AssertionError("an unknown model answered")


@check
def absent_routes_are_404():
    for call in (lambda: client.embeddings.create(model=MODEL, input="x"), lambda: client.images.generate(prompt="x")):
        try:
            call()
            raise AssertionError("an absent route answered")
        except openai.NotFoundError as error:
            true(error.body, "no body")


@check
async def async_chat():
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as aclient:
        whole = (await aclient.chat.completions.create(messages=CHAT, **SHORT)).choices[0].message.content
        stream = await aclient.chat.completions.create(messages=CHAT, stream=True, **SHORT)
        equal("".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]), whole)
        async with aclient.chat.completions.stream(messages=CHAT, **SHORT) as helper:
            async for _ in helper:
                pass
            equal(helper.current_completion_snapshot.choices[0].message.content, whole)
        names = [model.id async for model in await aclient.models.list()]
        true(MODEL in names, names)


@check
async def async_sixteen_at_once():
    import asyncio

    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY) as aclient:
        calls = [aclient.completions.create(prompt=f"number {i}", **SHORT) for i in range(16)]
        equal({answer.usage.completion_tokens for answer in await asyncio.gather(*calls)}, {6})


run_all("openai-python", openai.__version__)
