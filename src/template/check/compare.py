"""Compares prompts of trunkline-template with those of transformers, on real chat templates.

    python compare.py RENDER FOLDER [NAME ...]

RENDER is the program `target/debug/examples/render`, FOLDER has files `*.jinja`, and a NAME is a part of a file's name. Each template renders a grid
of conversations; both sides must give the same prompt, or both refuse. Where transformers alone refuses, as at a loop over None, a
prompt does no harm: such cases are counted, and are no difference. The exit status is 1 if a case differs.
"""

import copy
import datetime
import glob
import json
import os
import subprocess
import sys
import time

from transformers.utils import chat_template_utils

NOW = 1_767_322_800
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

os.environ["TZ"] = "UTC"
time.tzset()


class FixedTime(datetime.datetime):
    """The time of every case."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


chat_template_utils.datetime = FixedTime

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather <in a place> & say \"how\" it is.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "City, e.g. Zürich"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                    "days": {"type": ["integer", "null"], "minimum": 0.5, "maximum": 1e20},
                    "flags": {"type": "array", "items": {"type": "boolean"}},
                    "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
                },
                "required": ["place"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]
DOCUMENTS = [{"title": "Bees", "text": "Bees are insects."}, {"title": "Ü", "text": "'quoted' \"text\"\n"}]

SYSTEM = {"role": "system", "content": "You are kind.\n"}
USER = {"role": "user", "content": "  Hello, wörld 👋 {{ x }} <b>&'\"\\  \n"}
ANSWER = {"role": "assistant", "content": "Hi there!\nLine two."}
AGAIN = {"role": "user", "content": "And again?"}


def call(arguments, name="get_weather", call_id="abcdef123"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"place": "Zürich", "days": 3, "flags": [True, None, 1.5], "where": {"lat": 47.4, "lon": "8'5\""}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]}
CALLING_BARE = {"role": "assistant", "tool_calls": [call({"place": "Rome"})]}
CALLING_NULL = {"role": "assistant", "content": None, "tool_calls": [call({"place": "Rome"})]}
CALLING_TWO = {"role": "assistant", "content": "Let me look.", "tool_calls": [call(ARGUMENTS), call({}, "now", "abcdef456")]}
RESULT = {"role": "tool", "content": "{\"temp\": 21.5}", "tool_call_id": "abcdef123", "name": "get_weather"}
RESULT_TWO = {"role": "tool", "content": "noon", "tool_call_id": "abcdef456", "name": "now"}
THINKING = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two\nmake four."}
TAGGED = {"role": "assistant", "content": "<think>\nTwo and two\n</think>\n\nFour."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
    "turns": [USER, ANSWER, AGAIN],
    "system turns": [SYSTEM, USER, ANSWER, AGAIN, ANSWER, USER],
    "ends in an answer": [SYSTEM, USER, ANSWER],
    "two users": [USER, AGAIN],
    "starts with an answer": [ANSWER, USER],
    "late system": [USER, ANSWER, SYSTEM, AGAIN],
    "empty": [{"role": "user", "content": ""}],
    "odd role": [{"role": "critic", "content": "Hm."}],
    "no content": [{"role": "user"}],
    "reasoning": [USER, THINKING, AGAIN],
    "reasoning last": [USER, THINKING],
    "tagged reasoning": [USER, TAGGED, AGAIN, TAGGED],
    "parts": [PARTS],
    "parts turns": [SYSTEM, PARTS, ANSWER, PARTS],
    "call": [USER, CALLING],
    "call and result": [SYSTEM, USER, CALLING, RESULT],
    "call, result, answer": [USER, CALLING, RESULT, ANSWER, AGAIN],
    "bare call": [USER, CALLING_BARE, RESULT],
    "null content": [USER, CALLING_NULL, RESULT, ANSWER],
    "two calls": [USER, CALLING_TWO, RESULT, RESULT_TWO, ANSWER, AGAIN],
    "reasoning and call": [USER, {**CALLING_TWO, "reasoning_content": "Hm."}, RESULT, RESULT_TWO],
    "text arguments": [USER, {"role": "assistant", "content": "", "tool_calls": [call(json.dumps(ARGUMENTS))]}, RESULT],
}


def cases():
    """Yields names and arguments."""
    for name, messages in CONVERSATIONS.items():
        yield name, dict(messages=messages)
        yield name + " +prompt", dict(messages=messages, add_generation_prompt=True)
        if name not in ("odd role", "no content", "empty"):
            yield name + " +tools", dict(messages=messages, tools=TOOLS, add_generation_prompt=True)
    for name in ("user", "system turns", "reasoning", "call and result"):
        messages = CONVERSATIONS[name]
        for variables in ({"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"reasoning_effort": "high"}):
            yield f"{name} {variables}", dict(messages=messages, add_generation_prompt=True, variables=variables)
            yield f"{name} {variables} +tools", dict(messages=messages, add_generation_prompt=True, variables=variables, tools=TOOLS)
        yield name + " +documents", dict(messages=messages, documents=DOCUMENTS, add_generation_prompt=True)
        yield name + " no tools", dict(messages=messages, tools=[], add_generation_prompt=True)
    for end in ("Sure, I", "Sure,  \n", "  Sure", "a\u2028"):
        messages = [SYSTEM, USER, {"role": "assistant", "content": end}]
        yield f"continue {end!r}", dict(messages=messages, continue_final_message=True)
    yield "continue parts", dict(messages=[USER, {"role": "assistant", "content": [{"type": "text", "text": "So"}]}], continue_final_message=True)
    yield "continue user", dict(messages=[USER], continue_final_message=True)
    yield "other tokens", dict(messages=CONVERSATIONS["turns"], variables={"bos_token": "[B]", "eos_token": ""})


def expected(template, case):
    """Returns what transformers gives."""
    case = copy.deepcopy(case)
    variables = {**TOKENS, **case.pop("variables", {})}
    messages = chat_template_utils._normalize_chat_messages(case.pop("messages"))
    try:
        prompts, _ = chat_template_utils.render_jinja_template(conversations=[messages], chat_template=template, **case, **variables)
        return prompts[0], None
    except Exception as error:  # Templates fail in many ways.
        return None, f"{type(error).__name__}: {error}"


def main():
    render, folder, *names = sys.argv[1:]
    paths = [path for path in sorted(glob.glob(folder + "/*.jinja")) if not names or any(name in path for name in names)]
    grid = list(cases())
    lines, wanted = [], []
    for path in paths:
        template = open(path, encoding="utf-8").read()
        for name, case in grid:
            wanted.append((path, name, expected(template, case)))
            lines.append(json.dumps({"template": template, "tokens": TOKENS, "now": NOW, **case}))
    answers = subprocess.run([render], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=True).stdout
    got = [json.loads(line) for line in answers.split("\n") if line]
    assert len(got) == len(wanted), f"{len(got)} answers to {len(wanted)} cases"
    table, shown = {}, {}
    for (path, name, (prompt, error)), answer in zip(wanted, got):
        row = table.setdefault(path, dict(equal=0, refused=0, lenient=0, differ=0))
        if prompt is not None and answer.get("prompt") == prompt:
            row["equal"] += 1
        elif prompt is None and "error" in answer:
            row["refused"] += 1
        elif prompt is None:
            row["lenient"] += 1
        else:
            row["differ"] += 1
            shown.setdefault(path, []).append((name, prompt, error, answer))
    for path, differing in shown.items():
        for name, prompt, error, answer in differing[:3]:
            print(f"--- {os.path.basename(path)}: {name}")
            if "error" in answer:
                print("we refuse:", answer["error"][:300], "\ntransformers gives:", repr(prompt)[:300])
            else:
                ours = answer["prompt"]
                at = next((i for i, (a, b) in enumerate(zip(prompt, ours)) if a != b), min(len(prompt), len(ours)))
                print(f"at {at}: transformers", repr(prompt[max(0, at - 60) : at + 60]), "\n  ours", repr(ours[max(0, at - 60) : at + 60]))
    for path, row in table.items():
        mark = "differs" if row["differ"] else "equal"
        print(f"{os.path.basename(path):70} {row['equal']:4} equal {row['refused']:4} refused by both {row['lenient']:4} by transformers alone {row['differ']:4} differ  {mark}")
    total = {key: sum(row[key] for row in table.values()) for key in ("equal", "refused", "lenient", "differ")}
    print(f"{len(table)} templates, {len(wanted)} cases:", total)
    return 1 if total["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
