"""Prints the page of the Python client's API, from the signatures and docstrings in its source.

It reads the source with `ast` and imports nothing, so it needs no package and no particular version of Python.
"""

import ast
import pathlib
import textwrap

PACKAGE = pathlib.Path("clients/python/qsidecar")
# The order of the page: what a program uses first comes first.
MODULES = ["client", "aio", "job", "worker", "outcomes", "sql", "testing", "django_tasks", "errors"]


def docstring(node):
    """Returns a docstring without the indentation of its source. ast's own cleaning would also undo that of examples."""
    text = ast.get_docstring(node, clean=False)
    if not text:
        return ""
    first, *lines = text.rstrip().split("\n")
    margin = " " * node.body[0].col_offset
    return "\n".join([first, *(line.removeprefix(margin).rstrip() for line in lines)])


def parameters(node):
    if isinstance(node, ast.ClassDef):
        node = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    return [a.arg for a in node.args.args + node.args.kwonlyargs] if node and hasattr(node, "args") else []


def markdown(text, names=()):
    """Returns a docstring as Markdown: indented examples become code, and descriptions of parameters a list."""
    out, code = [], []

    def end_code():
        while code and not code[-1]:
            code.pop()
        if code:
            out.extend(["```python", *textwrap.dedent("\n".join(code)).split("\n"), "```", ""])
        code.clear()

    for line in text.split("\n"):
        if line.startswith("    ") or (code and not line):
            code.append(line)
            continue
        end_code()
        name, described, rest = line.partition(": ")
        out.append(f"- `{name}`: {rest}" if described and name in names else line)
    end_code()
    return "\n".join(out).strip()


def signature(node, owner=None):
    arguments = node.args
    if owner and not any(ast.unparse(d) == "staticmethod" for d in node.decorator_list):
        positional = arguments.posonlyargs or arguments.args
        positional.pop(0)  # self
    name = owner if node.name == "__init__" else f"{owner}.{node.name}" if owner else node.name
    prefix = "async def " if isinstance(node, ast.AsyncFunctionDef) else ""
    if any(ast.unparse(d) == "property" for d in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns)}" if node.returns else name
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    parts = ast.unparse(arguments)
    text = f"{prefix}{name}({parts}){returns}"
    if len(text) > 100:
        one_a_line = ",\n    ".join(split(parts))
        text = f"{prefix}{name}(\n    {one_a_line},\n){returns}"
    return text


def split(parts):
    """Splits arguments at the commas outside of brackets."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(parts):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            found.append(parts[start:i].strip())
            start = i + 1
    return [*found, parts[start:].strip()]


def public(node):
    return not node.name.startswith("_")


def show(heading, title, sig, node, names=()):
    print(f"{heading} {title}\n\n```python\n{sig}\n```\n")
    if docstring(node):
        print(markdown(docstring(node), names) + "\n")


def show_class(module, node):
    names = parameters(node)
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign) and public_field(n)]
    bases = ", ".join(ast.unparse(b) for b in node.bases)
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    if fields:
        head += "\n" + "\n".join("    " + f for f in fields)
    if init:
        head += "\n\n" + signature(init, node.name)
    show("##", f"{module}.{node.name}" if module in ("sql", "testing", "django_tasks") else node.name, head, node, names)
    for member in node.body:
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and public(member) and docstring(member):
            names = parameters(member)
            show("###", f"{node.name}.{member.name}", signature(member, node.name), member, names)


def public_field(node):
    return isinstance(node.target, ast.Name) and not node.target.id.startswith("_")


def exported():
    """The names of the package's `__all__`."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise SystemExit("the package has no __all__")


def main():
    names = exported()
    print("# Python API\n")
    print("`pydoc qsidecar` prints the same. The [README](../../clients/python/README.md) has examples.\n")
    for module in MODULES:
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        whole = module in ("sql", "testing", "django_tasks")
        if whole:
            print(f"## Module qsidecar.{module}\n\n{markdown(docstring(tree))}\n")
        for node in tree.body:
            wanted = public(node) and (whole or node.name in names) if hasattr(node, "name") else False
            if wanted and isinstance(node, ast.ClassDef):
                show_class(module, node)
            elif wanted and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                title = f"{module}.{node.name}" if whole else node.name
                show("##", title, signature(node), node, parameters(node))


main()
