"""Grammars in llama.cpp's form become Lark's, as in the server: src/grammar/src/gbnf.rs has the same cases."""

import pytest

from trunkline_worker.gbnf import is_gbnf, to_lark

GBNF = (
    '# a list\nroot ::= "[" item (", " item)* "]" # its end\nitem ::= [a-z]+ |\n  Other-Item{2,3}\n\n'
    'Other-Item ::= [^\\]\\x41"^] . "\\"\\u00e9\\n" root? [-/]{1}'
)
LARK = (
    '\nstart: "[" rule_1 ( ", " rule_1 )* "]"'
    "\nrule_1: /[\\u{61}-\\u{7A}]/+ | rule_2{2,3}"
    '\nrule_2: /[^\\u{5D}\\u{41}\\u{22}\\u{5E}]/ /./s "\\"é\\n" start? /[\\u{2D}\\u{2F}]/{1}\n'
)


def test_every_part_has_its_form_in_lark():
    assert to_lark(GBNF) == LARK
    assert is_gbnf(GBNF) and not is_gbnf(LARK)


@pytest.mark.parametrize("gbnf", ['root ::= "a', "root ::= [a", 'root ::= "a"{x}', "root := a ::= b", "root ::= a & b"])
def test_what_is_malformed_is_refused(gbnf):
    with pytest.raises(ValueError, match="stands outside of a text"):
        to_lark(gbnf)
