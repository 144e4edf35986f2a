"""langchain-openai: `pip install langchain-openai`; `python langchain.py BASE_URL`."""

import importlib.metadata
import json
import urllib.request

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from checks import BASE, KEY, check, equal, run_all, true

ASKED = urllib.request.Request(BASE + "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
MODEL = json.load(urllib.request.urlopen(ASKED))["data"][0]["id"]
COMMON = {"base_url": BASE + "/v1", "api_key": KEY, "model": MODEL, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(max_tokens=8, **COMMON)
MESSAGES = [SystemMessage("be brief"), HumanMessage("Tell me a story.")]


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@check
def invoke():
    answer = chat.invoke(MESSAGES)
    true(answer.content, "no content")
    equal(answer.usage_metadata["output_tokens"], 8)
    equal(answer.response_metadata["finish_reason"], "length")


@check
def stream():
    # With a base URL of one's own, langchain-openai asks for usage in streams only if it is told to.
    parts = list(ChatOpenAI(max_tokens=8, stream_usage=True, **COMMON).stream(MESSAGES))
    equal("".join(part.content for part in parts), chat.invoke(MESSAGES).content)
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    equal(whole.usage_metadata["output_tokens"], 8)


@check
async def ainvoke_and_astream():
    whole = (await chat.ainvoke(MESSAGES)).content
    equal("".join([part.content async for part in chat.astream(MESSAGES)]), whole)


@check
def batch():
    equal(len(chat.batch([[HumanMessage(f"number {i}")] for i in range(8)])), 8)


@check
def logprobs_and_n():
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    equal(len(answer.response_metadata["logprobs"]["content"]), 8)
    many = ChatOpenAI(max_tokens=8, n=2, **COMMON).generate([MESSAGES])
    equal(len(many.generations[0]), 2)


@check
def tools_accepted():
    bound = chat.bind_tools([add])
    equal(bound.invoke(MESSAGES).tool_calls, [])
    call = {"id": "call_1", "name": "add", "args": {"a": 1, "b": 2}}
    bound.invoke([*MESSAGES, AIMessage("", tool_calls=[call]), ToolMessage("3", tool_call_id="call_1")])


@check
def structured_output_or_refused():
    schema = {"title": "answer", "type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
    for method in ("json_schema", "function_calling"):
        try:
            chat.with_structured_output(schema, method=method).invoke(MESSAGES)
        except Exception as error:
            true("400" in str(error) or "length" in str(error), error)
            print(f"#   with_structured_output {method}: {str(error)[:90]}")


@check
def completion_invoke_and_stream():
    llm = OpenAI(max_tokens=8, **COMMON)
    equal("".join(llm.stream("Once upon")), llm.invoke("Once upon"))


run_all("langchain-openai", importlib.metadata.version("langchain-openai"))
