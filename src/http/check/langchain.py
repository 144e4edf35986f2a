"""langchain-openai: `pip install langchain-openai`; `python langchain.py BASE_URL`."""

import importlib.metadata
import json
import urllib.request

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

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


class Answer(BaseModel):
    """An answer."""

    value: int


@check
def structured_output():
    long = ChatOpenAI(max_tokens=400, seed=1, **{**COMMON, "temperature": 1})
    for method in ("json_schema", "function_calling", "json_mode"):
        for schema in (Answer, Answer.model_json_schema()):
            try:
                found = long.with_structured_output(schema, method=method, include_raw=True).invoke(MESSAGES)
            except openai.BadRequestError as error:
                print(f"#   with_structured_output {method} is refused: {str(error)[:90]}")
                continue
            # With json_mode the model has to be told of the schema, and this one cannot be.
            is_told = method != "json_mode"
            true(not is_told or found["parsed"], found)
            true(is_told or json.loads(found["raw"].content) is not None, found)
    called = long.bind_tools([add], tool_choice="add").invoke(MESSAGES).tool_calls
    equal([(call["name"], sorted(call["args"])) for call in called], [("add", ["a", "b"])])
    equal(long.bind_tools([add], tool_choice="any").invoke(MESSAGES).tool_calls[0]["name"], "add")


@check
def completion_invoke_and_stream():
    llm = OpenAI(max_tokens=8, **COMMON)
    equal("".join(llm.stream("Once upon")), llm.invoke("Once upon"))


run_all("langchain-openai", importlib.metadata.version("langchain-openai"))
