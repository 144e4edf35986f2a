"""Writes `src/golden.json`: templates of ours, one for each construct, with the prompts of transformers.

    python golden.py > ../src/golden.json
"""

import json

from compare import expected

HELLO = [{"role": "user", "content": "Hello"}]
TURNS = [
    {"role": "system", "content": " Be kind. \n"},
    {"role": "user", "content": "Grüße 👋 <b>&'\"\\\t\u2028"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. ", "reasoning": "because"},
    {"role": "user", "content": "Why?"},
]
CALLS = HELLO + [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"z": 1, "a": [True, None, 1.5, 1e20, 1e-7], "ü": "\u200b'"}}}]},
    {"role": "tool", "content": "7"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"z": {"type": "string"}, "a": {"enum": [1, 2.0, "<x>"]}}}}]


def case(template, messages=HELLO, **more):
    return dict(template=template, messages=messages, **more)


CASES = {
    "loop": case("{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ m.role }}: {{ m['content'] }}{% if not loop.last %}|{% endif %}\n{% endfor %}", TURNS),
    "loop neighbours": case("{% for m in messages %}{{ loop.previtem.role if not loop.first }}>{{ m.role }}>{{ loop.nextitem.role if not loop.last }};{% endfor %}", TURNS),
    "loop else": case("{% for m in [] %}a{% else %}none{% endfor %}"),
    "loop if": case("{% for m in messages if m.role == 'user' %}{{ loop.index0 }}{{ m.content }}{% endfor %}", TURNS),
    "break and continue": case("{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% if loop.index0 == 2 %}{% break %}{% endif %}{% endfor %}", TURNS),
    "whitespace": case("  {% if true %}  \n  a\n  {%- endif -%}  \n  b {{- 'c' -}} d\n{%+ if true %}e{% endif +%}\n  {# x #}  \nf\n"),
    "line breaks": case("a\r\n{% if true %}\r\nb\n{% endif %}\n\nc\n\n"),
    "raw": case("{% raw %}{{ x }}{% endraw %}\n{{ '{{' }}"),
    "generation": case("{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}{% endgeneration %}{{ x }}{% endfor %}", TURNS),
    "generation prompt": case("{% if add_generation_prompt %}go{% endif %}{{ add_generation_prompt }}", add_generation_prompt=True),
    "special tokens": case("{{ bos_token }}{{ eos_token }}{{ sep_token }}{{ pad_token is defined }}"),
    "variables": case("{{ enable_thinking }}{{ bos_token }}{{ nothing }}", variables={"enable_thinking": False, "bos_token": "[B]"}),
    "values": case("{{ none }}{{ true }}{{ False }}{{ 1 }}{{ 1.0 }}{{ 1e20 }}{{ 2 / 3 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 3 }}{{ 1e-7 }}"),
    "lists": case("{{ [1, 'a', none, true, 1.5, 1e-7, ('b',), (1, 2), {'k': \"it's\", 3: []}] }}"),
    "printed text": case("{{ [messages[1].content, '\\u200b', 'a\"b', '\\x00', '\\xa0', '\\ue000'] }}", TURNS),
    "printed messages": case("{{ messages }}", CALLS),
    "joined": case("{{ 'a' ~ 1 ~ none ~ true ~ [1] }}{{ 'a' 'b' }}{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 'ab' * 2 }}"),
    "tojson": case("{{ messages | tojson }}{{ tools | tojson(indent=2) }}", CALLS, tools=TOOLS),
    "tojson options": case("{{ tools | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}{{ messages[1].content | tojson(ensure_ascii=true) }}{{ [] | tojson(indent=4) }}{{ {} | tojson(indent=4) }}{{ {'a': {}} | tojson(indent=0) }}{{ [1, [2]] | tojson(false, '\t') }}", TURNS, tools=TOOLS),
    "tojson values": case("{{ [1e20, 1e-7, 0.1, -0.0, true, none, {1: 2, none: 3, true: 4}, (1, 2)] | tojson }}{{ '</script>\\x7f\\x01\\u2028' | tojson }}"),
    "tojson of nothing": case("{{ nothing | tojson }}"),
    "reasoning": case("{% for m in messages %}{{ m.keys() | list }}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}", TURNS),
    "content of none": case("{{ 'content' in messages[1] }}{{ messages[1].content is defined }}", CALLS),
    "tools": case("{% if tools %}{% for t in tools %}{{ t.function.name }}{% for k, v in t.function.parameters.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endif %}", tools=TOOLS),
    "no tools": case("{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ not tools }}"),
    "empty tools": case("{{ tools is none }}{{ tools | length }}", tools=[]),
    "documents": case("{% for d in documents %}{{ d.title }}: {{ d['text'] }}{% endfor %}", documents=[{"title": "A", "text": "b"}]),
    "namespace": case("{% set ns = namespace(found=false, n=0, system='') %}{% for m in messages %}{% if m.role == 'user' and not ns.found %}{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.found }}{{ ns.n }}{{ ns.other is defined }}", TURNS),
    "scope": case("{% set x = 1 %}{% for i in [1, 2] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set y = 3 %}{% endif %}{{ y }}{% with z = 4 %}{{ z }}{% endwith %}{{ z }}"),
    "set block": case("{% set x %}a{{ 1 }}\n{% endset %}{{ x }}{{ x | length }}{% set y | upper %}b{% endset %}{{ y }}{% set a, b = 1, 2 %}{{ a }}{{ b }}"),
    "macros": case("{% macro f(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}{{ d }}]{% endmacro %}{% set d = 9 %}{{ f(1) }}{{ f(1, c=2, b=3) }}{% set r = f('q') | trim %}{{ r }}"),
    "recursive macro": case("{% macro show(v, depth=0) %}{% if v is mapping %}{% for k, x in v | dictsort %}{{ '  ' * depth }}{{ k }}:\n{{ show(x, depth + 1) }}{% endfor %}{% elif v is sequence and v is not string %}{% for x in v %}{{ show(x, depth + 1) }}{% endfor %}{% else %}{{ '  ' * depth }}{{ v }}\n{% endif %}{% endmacro %}{{ show(tools[0]) }}", tools=TOOLS),
    "macro with a namespace": case("{% macro next(ns) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}{% set ns = namespace(n=0) %}{{ next(ns) }}{{ next(ns) }}"),
    "call block": case("{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in{% endcall %}"),
    "filter block": case("{% filter upper %}abc{{ 'd' }}{% endfilter %}"),
    "recursive loop": case("{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}"),
    "slices": case("{{ messages[1:] | length }}{{ messages[-1].role }}{{ messages[::-1][0].content }}{{ 'héllo'[1:3] }}{{ 'abc'[-1] }}{{ messages[:-2] | map(attribute='role') | list }}", TURNS),
    "out of range": case("{{ messages[9] }}{{ messages[9] is defined }}{{ ''[0] is defined }}"),
    "tests": case("{% for v in [none, true, 1, 1.5, 'a', [], (), {}, nothing] %}{{ v is none }},{{ v is boolean }},{{ v is number }},{{ v is integer }},{{ v is float }},{{ v is string }},{{ v is sequence }},{{ v is iterable }},{{ v is mapping }},{{ v is defined }},{{ v is true }},{{ v is false }};{% endfor %}"),
    "more tests": case("{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is eq 1 }}{{ 2 is ge(3) }}{{ 'a' is in ['a'] }}{{ 'a' is lower }}{{ range is callable }}{{ 1 is callable }}{{ none is sameas none }}{{ 'a' is not in 'b' }}"),
    "filters": case("{{ ' a ' | trim }}{{ 'abc' | trim('ac') }}{{ 'aB' | upper }}{{ 'aB' | lower }}{{ 'ab cd' | title }}{{ 'aB' | capitalize }}{{ 'a-b' | replace('-', '+') }}{{ [3, 1, 2] | sort | join(',') }}{{ [1, 2] | first }}{{ [1, 2] | last }}{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent(2, true) }}{{ '3' | int + 1 }}{{ 'x' | int }}{{ '1.5' | float }}{{ 2.567 | round(1) }}{{ [1, 2] | sum }}{{ -1 | abs }}{{ [1, 1, 2] | unique | list }}{{ [1, 2, 3] | batch(2) | list }}{{ 'abc' | reverse }}{{ 'abc' | list }}{{ [2, 5] | max }}"),
    "filters of objects": case("{{ messages | map(attribute='role') | join(' ') }}{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length }}{{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }}{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'a': 2} | items | list }}{{ messages | groupby('role') | map('first') | list }}", TURNS),
    "default": case("{{ nothing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}{{ none | d('d', true) }}"),
    "format": case("{{ '%s-%d-%05.2f' | format('a', 3, 1.5) }}{{ '{}:{:>4}|{x}'.format(1, 'b', x=2) }}"),
    "methods": case("{{ ' a '.strip() }}{{ 'xax'.strip('x') }}{{ 'xax'.lstrip('x') }}{{ 'xax'.rstrip('x') }}{{ 'a,b,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a  b '.split() }}{{ 'a b c'.rsplit(' ', 1) }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'a-b'.replace('-', '') }}{{ 'aab'.replace('a', 'x', 1) }}{{ 'Ab'.lower() }}{{ 'Ab'.upper() }}{{ 'ab cd'.title() }}{{ 'aB'.capitalize() }}{{ 'abca'.find('a') }}{{ 'abca'.rfind('a') }}{{ 'abca'.count('a') }}{{ '12'.isdigit() }}{{ ','.join(['a', 'b']) }}{{ 'a\nb'.splitlines() }}"),
    "more methods": case("{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('=') }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}{{ '-7'.zfill(4) }}{{ 'abc'.index('c') }}{{ 'a b  c'.rsplit(none, 1) }}{{ 'a\\x1cb\\x1c'.strip() | length }}{{ 'Ab'.casefold() }}"),
    "methods of objects": case("{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}{{ {'a': 1, 'b': 2}.items() | list }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}{{ [1, 1].count(1) }}{{ {'items': 3}['items'] }}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}"),
    "changes are refused": case("{% set x = [] %}{{ x.append(1) }}"),
    "private is refused": case("{{ ''.__class__.__mro__ }}"),
    "conditions": case("{{ 'a' if messages else 'b' }}{{ 'a' if false }}{{ not '' and [] or 'c' }}{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 'role' in messages[0] }}{{ 'x' not in [1] }}{{ 1 == 1.0 }}{{ 'a' < 'b' }}{{ true and 1 }}"),
    "undefined": case("{{ messages[0].nothing }}{{ messages[0]['nothing'] is defined }}{% if messages[0].nothing %}a{% endif %}{{ nothing or 'b' }}{{ none.x is defined }}"),
    "undefined of undefined": case("{{ messages[0].nothing.more }}"),
    "undefined added": case("{{ nothing + 'a' }}"),
    "none added": case("{{ 'a' + none }}"),
    "number added": case("{{ 'a' + 1 }}"),
    "unknown filter": case("{{ 1 | no_such_filter }}"),
    "unknown function": case("{{ no_such_function() }}"),
    "include": case("{% include 'x' %}"),
    "malformed": case("{% if true %}"),
    "raise": case("{% if messages | length == 1 %}{{ raise_exception('one') }}{% endif %}"),
    "raise not": case("{% if messages | length == 2 %}{{ raise_exception('two') }}{% endif %}ok"),
    "date": case("{{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %d %b %-d %j %p %I') }}{% set d = strftime_now('%d %b %Y') if strftime_now is defined else '' %}{{ d }}"),
    "date in a macro": case("{% macro f() %}{{ strftime_now('%Y') }}{% endmacro %}{{ f() }}"),
    "dict": case("{{ dict(a=1, b=2) }}{{ range(3) | list }}{{ range(1, 6, 2) | list }}"),
    "thinking": case("{% set c = messages[2].content %}{% if '</think>' in c %}{% set r = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}[{{ r }}]{{ c.split('</think>')[-1].lstrip('\\n') }}{% endif %}", TURNS),
    "continue": case("{% for m in messages %}<{{ m.content }}>{% endfor %}", TURNS[1:3], continue_final_message=True),
    "continue stripped": case("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", TURNS[1:3], continue_final_message=True),
    "continue parts": case("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", [{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], continue_final_message=True),
    "continue lost": case("{% for m in messages %}<{{ m.content[:1] }}>{% endfor %}", TURNS[1:3], continue_final_message=True),
    "continue without content": case("{{ messages[0].role }}", continue_final_message=True),
}


def main():
    out = []
    for name, one in CASES.items():
        prompt, _ = expected(one["template"], {key: value for key, value in one.items() if key != "template"})
        out.append({"name": name, **one, "prompt": prompt})
    print("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in out) + "\n]")


if __name__ == "__main__":
    main()
