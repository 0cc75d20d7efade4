"""Edits between the prompt and the answer: template, device, unpacking, decoding, and how the text is handed on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dstune.readers.app_edit_context import Context
from dstune.readers.app_edit_keywords import callee_name, made
from dstune.readers.app_edit_sites import Program, Site, bound, key_of, outermost, site
from dstune.readers.app_edit_tree import (
    Edits,
    Tree,
    callee,
    dotted,
    drop_statement,
    expression,
    statements,
    walk,
)  # fmt: skip


def drop_tokenizer_to(program: Program, context: Context) -> cst.Module | None:
    """`tokenizer.to("cuda")` goes, as a statement and on the load: a tokenizer has no device."""
    tree, edits = program.tree, Edits()
    for call in program.tokenizer_loads:
        here: cst.BaseExpression = call
        whole = outermost(tree, call)
        while here is not whole:
            over = tree.parent(tree.parent(here) or here)
            assert isinstance(over, cst.Call)
            edits.add(over, lambda n: n.func.value)
            here = over
    for small in [*tree.find(cst.Expr), *tree.find(cst.Assign)]:
        value = small.value
        if isinstance(value, cst.Call) and callee_name(value) in ("to", "cuda") and callee(value)[0] in program.tokenizers:
            target = dotted(small.targets[0].target) if isinstance(small, cst.Assign) else callee(value)[0]
            if target == callee(value)[0]:
                drop_statement(tree, edits, small)
            elif isinstance(small, cst.Assign):
                edits.put(value, cst.ensure_type(value.func, cst.Attribute).value)
    return made(program, edits)


def encodings(program: Program) -> Iterator[tuple[cst.Call, list[str], Site]]:
    """(call that turns a prompt into tensors, names it is bound to, the generate site that takes them)."""
    tree = program.tree
    for call in tree.calls:
        left, name = callee(call)
        full = f"{left}.{name}" if left else name
        encode = full in program.tokenizers or (
            left in program.tokenizers and name in ("encode", "encode_plus", "batch_encode_plus", "apply_chat_template")
        )
        if not encode or site(tree, call).get("return_tensors") is None:
            continue
        names = _passed_on(tree, names_of(tree, call), call)
        for where in program.generates:
            scope = tree.function(call)
            if tree.function(where.call) is not scope and (scope is None or not tree.within(where.call, scope)):
                continue
            inside = tree.within(call, where.call)
            if inside or (tree.before(call, where.call) and any(uses(tree, where, n) for n in names)):
                yield call, names, where
                break


def _passed_on(tree: Tree, names: list[str], call: cst.Call) -> list[str]:
    """The names and those that get a part of them: `input_ids = inputs["input_ids"].to(…)`."""
    scope: cst.CSTNode = tree.function(call) or tree.module
    for assign in walk(scope, cst.Assign):
        target = dotted(assign.targets[0].target)
        reads = any(n.value in names for n in walk(assign.value, cst.Name))
        if (
            target
            and target not in names
            and reads
            and not any(callee(c)[1] == "generate" for c in walk(assign.value, cst.Call))
        ):
            names = [*names, target]
    return names


def names_of(tree: Tree, call: cst.Call) -> list[str]:
    """Names bound to a call, also through `["input_ids"]`, `.input_ids` and `.to(…)`."""
    here: cst.CSTNode = call
    while True:
        up = tree.parent(here)
        if (isinstance(up, cst.Attribute | cst.Subscript) and up.value is here) or (
            isinstance(up, cst.Call) and up.func is here
        ):
            here = up
        else:
            return bound(tree, here) if isinstance(here, cst.BaseExpression) else []


def uses(tree: Tree, where: Site, name: str) -> bool:
    """Whether a generate site reads a variable (its call or the dicts that give it keywords)."""
    return any(
        dotted(n) == name
        for holder in (where.call, *where.holders)
        for kind in (cst.Name, cst.Attribute)
        for n in walk(holder, kind)
    )


def add_chat_template(program: Program, context: Context) -> cst.Module | None:
    """`tokenizer(prompt)` → `tokenizer.apply_chat_template([{"role": "user", …}], add_generation_prompt=True)`; no system prompt."""
    tree, edits = program.tree, Edits()
    for where in program.generates:
        if dotted(where.call.func) in program.pipes and not _pipe_messages(program, edits, where):
            return None
    for call, _, _ in encodings(program):
        left, name = callee(call)
        if name == "apply_chat_template":
            continue
        tokenizer = left if name in ("encode", "encode_plus") else tree.code(call.func)
        if name == "batch_encode_plus":
            return None
        prompt = next((a.value for a in call.args if a.keyword is None and not a.star), None)
        if prompt is None:
            prompt = next((a.value for a in call.args if key_of(a) == "text"), None)
        if (
            prompt is None
            or isinstance(prompt, cst.List | cst.ListComp)
            or sum(a.keyword is None for a in call.args) > 1
            or any(a.star for a in call.args)
        ):
            return None
        if _templated(tree, prompt, call):
            return None
        code = tree.code(prompt)
        line = tree.statement(call)
        if is_messages(tree, prompt, call):
            messages = code
        elif isinstance(line, cst.SimpleStatementLine):
            messages = tree.fresh("messages", "conversation")
            before = statements(tree, f'{messages} = [{{"role": "user", "content": {code}}}]\n')[0]
            edits.before(line, before)
        else:
            messages = f'[{{"role": "user", "content": {code}}}]'
        kept = [
            a
            for a in call.args
            if a.keyword is not None and key_of(a) not in ("text", "add_special_tokens", "return_attention_mask", "return_dict")
        ]
        new = cst.ensure_type(expression(f"{tokenizer}.apply_chat_template({messages}, add_generation_prompt=True)"), cst.Call)
        more = [*new.args[:-1], new.args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))]
        flag = cst.ensure_type(expression("f(return_dict=True)"), cst.Call).args[0]
        kept = [
            k.with_changes(
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")), whitespace_after_arg=cst.SimpleWhitespace("")
            )
            for k in kept
        ]
        whole: cst.BaseExpression = new.with_changes(args=[*more, *kept, flag])
        if name == "encode":  # it returned the ids alone
            whole = cst.Subscript(whole, [cst.SubscriptElement(cst.Index(cst.SimpleString('"input_ids"')))])
        edits.put(call, whole)
    return made(program, edits)


def _pipe_messages(program: Program, edits: Edits, where: Site) -> bool:
    """A pipeline gets messages instead of a text, and its answer is the last of them. False where that is not safe."""
    tree = program.tree
    given = next(iter(where.positional()), None)
    if given is None or isinstance(given.value, cst.List | cst.ListComp) or is_messages(tree, given.value, where.call):
        return True
    if _templated(tree, given.value, where.call) or not where.closed:
        return False
    names, scope = set(bound_result(tree, where.call)), tree.function(where.call) or tree.module
    answers = [
        s for s in walk(scope, cst.Subscript) if tree.code(s).rstrip("]").endswith(('"generated_text"', "'generated_text'"))
    ]
    mine = [s for s in answers if tree.within(where.call, s) or names & {n.value for n in walk(s, cst.Name)}]
    if not mine or any(isinstance(tree.parent(s), cst.Subscript) and tree.parent(s).value is s for s in mine):  # type: ignore[union-attr]
        return False
    if cut_afterwards(tree, where):
        return False
    edits.put(given.value, expression(f'[{{"role": "user", "content": {tree.code(given.value)}}}]'))
    full = where.get("return_full_text")
    if full is None or dotted(full.value) != "False":  # without the prompt it is the text alone
        for one in mine:
            edits.add(one, _last_content)
    return True


def _last_content(node: cst.Subscript) -> cst.Subscript:
    """`x` → `x[-1]["content"]`."""
    whole = cst.ensure_type(expression('x[-1]["content"]'), cst.Subscript)
    return whole.with_changes(value=cst.ensure_type(whole.value, cst.Subscript).with_changes(value=node))


def _templated(tree: Tree, prompt: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether the prompt already carries a template: role markers in it, or made by `apply_chat_template(tokenize=False)`."""
    name = dotted(prompt)
    values = [prompt, *(a.value for a in tree.assigned(name, tree.function(call)) if a.value is not None)] if name else [prompt]
    called = {callee(c)[1] for v in values for c in walk(v, cst.Call)}
    made_by = [f for f in tree.functions if f.name.value in called]  # a function of the program that builds the prompt
    added = [a.value for a in walk(tree.function(call) or tree.module, cst.AugAssign) if name and dotted(a.target) == name]
    code = "\n".join(tree.code(v) for v in [*values, *added, *made_by])
    return bool(
        re.search(
            r"apply_chat_template|<\|?[A-Za-z_]+\|?>|<｜|\[INST\]|###\s*(?:Instruction|Human|User)|(?m:(?:User|Human|Assistant|用户)\s*[:：])",
            code,
        )
    )


def is_messages(tree: Tree, prompt: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether a prompt is a variable with a list of messages."""
    name = dotted(prompt)
    return bool(name) and any(
        isinstance(a.value, cst.List) and '"role"' in tree.code(a.value).replace("'", '"')
        for a in tree.assigned(name, tree.function(call))
    )


def bound_result(tree: Tree, call: cst.Call) -> list[str]:
    """Names bound to the result of generate, also of `generate(…)[0]`, and names computed from it by slicing alone."""
    here: cst.BaseExpression = call
    up = tree.parent(here)
    while isinstance(up, cst.Subscript) and up.value is here:
        here, up = up, tree.parent(up)
    return bound(tree, here)


def cut_afterwards(tree: Tree, where: Site) -> bool:
    """Whether the program takes the prompt off itself: slices tensors, or cuts the text."""
    scope: cst.CSTNode = tree.function(where.call) or tree.module
    names = set(bound_result(tree, where.call))
    for node in walk(scope, cst.Subscript):
        if not tree.before(where.call, node) or tree.within(where.call, node):
            continue
        code = tree.code(node)
        if re.search(r"\.shape\[|len\(|input_len|prompt_len", code) and ":" in code:
            return True
    for call in walk(scope, cst.Call):
        if callee(call)[1] in ("removeprefix",) or (
            callee_name(call) in ("replace", "split", "rsplit", "partition", "rpartition")
            and tree.before(where.call, call)
            and not names & {callee(call)[0]}
        ):
            return True
    return False


def inputs_to_device(program: Program, context: Context) -> cst.Module | None:
    """The encoded prompt goes where the model is: `.to(model.device)`."""
    tree, edits = program.tree, Edits()
    for call, names, where in encodings(program):
        scope = tree.function(call) or tree.module
        moved = any(
            callee_name(c) in ("to", "cuda") and (tree.within(call, c) or any(_mentions(c, n) for n in names))
            for c in walk(scope, cst.Call)
        )
        if moved or any(
            isinstance(c.func, cst.Attribute) and callee_name(c) in ("to", "cuda") for c in walk(where.call, cst.Call)
        ):
            continue
        left, name = callee(where.call)
        model = (
            left
            if name == "generate"
            else next(
                (dotted(a.value).removesuffix(".generate") for a in where.call.args if dotted(a.value).endswith(".generate")),
                "",
            )
        )
        if not model:
            return None
        edits.put(call, cst.Call(cst.Attribute(call, cst.Name("to")), [cst.Arg(expression(f"{model}.device"))]))
    return made(program, edits)


def _mentions(call: cst.Call, name: str) -> bool:
    return any(dotted(n) == name for n in walk(call.func, cst.Name))


TABLE = {
    "drop-tokenizer-to": drop_tokenizer_to,
    "inputs-to-device": inputs_to_device,
}
