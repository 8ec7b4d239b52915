"""Shows the records of extensions on the site: `yarn = extension("yarn", "frequencies", extend_yarn)` as a function."""

import importlib
import inspect
from typing import Any

import griffe


class Records(griffe.Extension):
    """Replace each attribute that is a call of `extension` by the function that the call returns."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called by griffe once the members of a module are known."""
        for name, attribute in list(mod.attributes.items()):
            if not isinstance(attribute.value, griffe.ExprCall) or attribute.value.canonical_name != "extension":
                continue
            function = mod.functions[str(attribute.value.arguments[2])]
            options = [one for one in function.parameters if one.kind is griffe.ParameterKind.keyword_only]
            lines = {"lineno": attribute.lineno, "endlineno": attribute.endlineno}
            record = griffe.Function(name, parameters=griffe.Parameters(*options), returns="Extension", **lines)
            made = getattr(importlib.import_module(mod.path), name)
            record.docstring = griffe.Docstring(inspect.getdoc(made) or "", parent=record)
            mod.set_member(name, record)
