"""/v1/responses, calls of tools and prompt caching with the openai package: `python openai_responses.py BASE_URL`.

Calls and reasoning are checked with a server that repeats the prompt: `trunkline serve --simulate h100-80g --simulate-text echo
--tool-call-parser hermes --reasoning-parser qwen3`, and ECHO=1 here."""

import os

import openai
from pydantic import BaseModel

from checks import BASE, KEY, check, equal, run_all, true

client = openai.OpenAI(base_url=BASE + "/v1", api_key=KEY, max_retries=0, timeout=60)
MODEL = client.models.list().data[0].id
SHORT = {"model": MODEL, "temperature": 0, "max_output_tokens": 6}
CHAT = {"model": MODEL, "temperature": 0, "max_tokens": 4}
LONG = "Once upon a time there was a prompt that many requests share. " * 12
FUNCTION = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@check
def response():
    answer = client.responses.create(input="Once upon", instructions="be brief", **SHORT)
    equal((answer.object, answer.status), ("response", "incomplete"))
    equal(answer.incomplete_details.reason, "max_output_tokens")
    true(answer.output_text, "no text")
    equal(answer.usage.output_tokens, 6)
    equal(answer.usage.total_tokens, answer.usage.input_tokens + 6)
    equal((answer.output[0].type, answer.output[0].role), ("message", "assistant"))


@check
def response_of_items():
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Once"}]}, {"role": "assistant", "content": "upon"},
             {"role": "user", "content": "a time"}]
    first = client.responses.create(input=items, **SHORT)
    true(first.output_text, "no text")
    again = client.responses.create(input=items + first.output + [{"role": "user", "content": "more"}], **SHORT)
    true(again.usage.input_tokens > first.usage.input_tokens, "the output was not sent back")


@check
def response_streamed():
    whole = client.responses.create(input="Once upon", **SHORT)
    events = list(client.responses.create(input="Once upon", stream=True, **SHORT))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal((events[0].type, events[1].type, events[-1].type), ("response.created", "response.in_progress", "response.incomplete"))
    equal(events[-1].response.output_text, whole.output_text)
    true(all(type(event).__name__ != "BaseModel" for event in events), "an event of an unknown type")


@check
def response_stream_helper():
    text = ""
    with client.responses.stream(input="Once upon", **SHORT) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                true(event.snapshot == text, "the snapshot is not the text so far")
    true(text, "no text")


@check
def response_logprobs():
    answer = client.responses.create(input="Once", include=["message.output_text.logprobs"], top_logprobs=2, **SHORT)
    logprobs = answer.output[0].content[0].logprobs
    equal((len(logprobs), len(logprobs[0].top_logprobs)), (6, 2))


class Answer(BaseModel):
    value: int


@check
def response_parsed_and_forced():
    long = {"model": MODEL, "input": "Once upon", "max_output_tokens": 400}
    try:
        answer = client.responses.parse(text_format=Answer, **long)
        true(isinstance(answer.output_parsed, Answer), answer)
        tools = [{"type": "function", **FUNCTION, "strict": True}]
        for choice in ("required", {"type": "function", "name": "add"}):
            answer = client.responses.create(tools=tools, tool_choice=choice, parallel_tool_calls=False, **long)
            equal([item.type for item in answer.output], ["function_call"])
            with client.responses.stream(tools=tools, tool_choice=choice, parallel_tool_calls=False, **long) as stream:
                equal([item.name for item in stream.get_final_response().output], ["add"])
    except openai.BadRequestError as error:
        print(f"#   structures are refused with 400: {error.param}")


@check
async def response_async():
    async with openai.AsyncOpenAI(base_url=BASE + "/v1", api_key=KEY) as many:
        stream = await many.responses.create(input="Once upon", stream=True, **SHORT)
        kinds = [event.type async for event in stream]
        equal(kinds[-1], "response.incomplete")


@check
def what_is_not_supported_is_refused():
    for more, param in [({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
                        ({"conversation": "conv_1"}, "conversation"), ({"tools": [{"type": "web_search"}]}, "tools")]:
        try:
            client.responses.create(input="x", **SHORT, **more)
            raise AssertionError(f"{param} was taken")
        except openai.BadRequestError as error:
            equal(error.param, param)


def streamed(**asked):
    """The response at the end of a stream; the helper of `stream()` takes completed ones alone."""
    return list(client.responses.create(stream=True, **asked, **SHORT))[-1].response


def missing(call, param=None):
    try:
        call()
        raise AssertionError("found")
    except openai.NotFoundError as error:
        equal(error.param, param)


@check
def response_stored():
    first = client.responses.create(input="Once upon", instructions="be brief", **SHORT)
    true(first.store, "not stored")
    equal(client.responses.retrieve(first.id), first)
    second = client.responses.create(input="a time", previous_response_id=first.id, **SHORT)
    equal(second.previous_response_id, first.id)
    items = [{"role": "user", "content": "Once upon"}, *first.output, {"role": "user", "content": "a time"}]
    whole = client.responses.create(input=items, store=False, **SHORT)
    equal((second.output_text, second.usage.input_tokens), (whole.output_text, whole.usage.input_tokens))
    missing(lambda: client.responses.retrieve(whole.id))
    third = streamed(input="there was", previous_response_id=second.id)
    equal(client.responses.retrieve(third.id).output_text, third.output_text)
    listed = list(client.responses.input_items.list(third.id, order="asc", limit=2))
    equal([item.role for item in listed], ["user", "assistant", "user", "assistant", "user"])
    equal([item.content[0].text for item in listed][::2], ["Once upon", "a time", "there was"])
    client.responses.delete(first.id)
    missing(lambda: client.responses.retrieve(first.id))
    missing(lambda: client.responses.create(input="x", previous_response_id=first.id, **SHORT), "previous_response_id")
    client.responses.create(input="x", previous_response_id=second.id, **SHORT)


@check
def response_compacted():
    first = client.responses.create(input=LONG, instructions="be brief", **SHORT)
    second = client.responses.create(input="And then?", instructions="be brief", previous_response_id=first.id, **SHORT)
    compacted = client.responses.compact(model=MODEL, previous_response_id=second.id)
    equal(compacted.object, "response.compaction")
    equal([item.type for item in compacted.output], ["message", "message", "compaction"])
    true(compacted.usage.input_tokens_details.cached_tokens > 0.8 * second.usage.input_tokens, compacted.usage)
    answer = client.responses.create(input=[*compacted.output, {"role": "user", "content": "And then?"}], **SHORT)
    true(answer.output_text, "no text")
    # The same by items, and as a dump of them.
    items = [{"role": "user", "content": LONG}, *first.output, {"role": "user", "content": "And then?"}]
    compacted = client.responses.compact(model=MODEL, input=items, instructions="be brief")
    dumped = [item.model_dump(exclude_none=True) for item in compacted.output]
    client.responses.create(input=[*dumped, {"role": "user", "content": "And then?"}], **SHORT)


@check
def response_compacted_by_a_threshold():
    items = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "And then?"}]
    tokens = client.responses.create(input=items, **SHORT).usage.input_tokens
    manage = [{"type": "compaction", "compact_threshold": tokens - 1}]
    answer = client.responses.create(input=items, context_management=manage, **SHORT)
    equal([item.type for item in answer.output], ["compaction", "message"])
    final = streamed(input=items, context_management=manage)
    equal([item.type for item in final.output], ["compaction", "message"])
    equal(final.output_text, answer.output_text)
    true(answer.usage.compaction["input_tokens_details"]["cached_tokens"] > 0, answer.usage)
    by_items = client.responses.create(input=[*items, *answer.output, {"role": "user", "content": "More."}], **SHORT)
    by_id = client.responses.create(input="More.", previous_response_id=answer.id, **SHORT)
    equal((by_id.output_text, by_id.usage.input_tokens), (by_items.output_text, by_items.usage.input_tokens))


@check
def prompt_cache_fields():
    text = {"type": "text", "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    messages = [{"role": "user", "content": [text, {"type": "text", "text": "And then?"}]}]
    options = {"mode": "explicit", "ttl": "30m"}
    first = client.chat.completions.create(messages=messages, prompt_cache_options=options, **CHAT)
    details = first.usage.prompt_tokens_details
    true(0 < details.cache_write_tokens + details.cached_tokens < first.usage.prompt_tokens, details)
    answer = client.chat.completions.create(messages=messages, prompt_cache_key="key", prompt_cache_retention="24h", **CHAT)
    true(answer.usage.prompt_tokens_details.cached_tokens > 0, "nothing was found")
    answer = client.responses.create(input=LONG, prompt_cache_key="key", **SHORT)
    details = answer.usage.input_tokens_details
    equal(details.cache_write_tokens + details.cached_tokens, answer.usage.input_tokens)
    try:
        client.chat.completions.create(messages=messages, prompt_cache_retention="forever", **CHAT)
        raise AssertionError("taken")
    except openai.BadRequestError as error:
        equal(error.param, "prompt_cache_retention")


if os.environ.get("ECHO"):
    # The answer is the prompt: the template's marks, then what was asked.
    ASKED = {"model": MODEL, "max_tokens": 400, "tools": [{"type": "function", "function": FUNCTION}],
             "messages": [{"role": "user", "content": "Do it. " + CALL + CALL}]}

    @check
    def chat_calls():
        message = client.chat.completions.create(**ASKED).choices[0].message
        equal([(call.function.name, call.function.arguments) for call in message.tool_calls], [("add", '{"a": 1}')] * 2)
        true("<tool_call>" not in message.content and "Do it." in message.content, message.content)

    @check
    def chat_calls_streamed():
        with client.chat.completions.stream(**ASKED) as stream:
            for _ in stream:
                pass
            choice = stream.get_final_completion().choices[0]
        equal(choice.finish_reason, "tool_calls")
        equal([call.function.name for call in choice.message.tool_calls], ["add", "add"])

    @check
    def response_calls():
        tools = [{"type": "function", **FUNCTION}]
        asked = {"model": MODEL, "input": "Do it. " + CALL, "tools": tools, "max_output_tokens": 400}
        answer = client.responses.create(**asked)
        calls = [item for item in answer.output if item.type == "function_call"]
        equal([(call.name, call.arguments) for call in calls], [("add", '{"a": 1}')])
        with client.responses.stream(**asked) as stream:
            final = stream.get_final_response()
        equal([item.type for item in final.output], [item.type for item in answer.output])
        result = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "2"}
        again = client.responses.create(**{**asked, "input": [{"role": "user", "content": "Do it."}, *answer.output, result]})
        equal(again.status, "completed")


run_all("openai", openai.__version__)
