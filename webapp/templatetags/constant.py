"""Parts of a page that only the language changes: `{% constant %}…{% endconstant %}`, in every template.

Each process renders such a part once in each language. It holds text, translations and icons; whatever could
differ between requests is a syntax error, so nothing of a person or a comparison is kept.
"""

from django.template import Context, Library, Node, NodeList, TemplateSyntaxError
from django.template.base import FilterExpression, Parser, TextNode, Token, TokenType, Variable
from django.template.defaulttags import CommentNode
from django.template.library import SimpleNode
from django.templatetags.i18n import BlockTranslateNode, TranslateNode
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from webapp.templatetags.icons import icon

register = Library()


@register.tag
def constant(parser: Parser, token: Token) -> "ConstantNode":
    """Parse the part; raise `TemplateSyntaxError` if it holds more than text, translations and icons."""
    nodes = parser.parse(("endconstant",))
    parser.delete_first_token()
    for node in nodes:
        if not _is_constant(node):
            raise TemplateSyntaxError(
                f"{{% {token.contents} %}} holds text, translations and icons only, not {node!r}."
            )
    return ConstantNode(nodes)


class ConstantNode(Node):
    """Renders its nodes once in each language."""

    def __init__(self, nodes: NodeList) -> None:
        self._nodes = nodes
        self._rendered: dict[str | None, SafeString] = {}

    def render(self, context: Context) -> SafeString:
        language = get_language()
        rendered = self._rendered.get(language)
        if rendered is None:
            rendered = self._rendered[language] = self._nodes.render(context.new())
        return rendered


def _is_constant(node: Node) -> bool:
    if isinstance(node, SimpleNode):
        named = [*node.args, *node.kwargs.values()]
        return node.func is icon and node.target_var is None and not any(map(_varies, named))
    if isinstance(node, TranslateNode):
        return node.asvar is None and not _varies(node.filter_expression)
    if isinstance(node, BlockTranslateNode):
        texts = [*node.singular, *(node.plural or ())]
        return node.asvar is None and all(text.token_type == TokenType.TEXT for text in texts)
    return isinstance(node, TextNode | CommentNode)


def _varies(expression: FilterExpression) -> bool:
    """Return True for anything but a literal without filters."""
    named = expression.var
    return bool(expression.filters) or (isinstance(named, Variable) and named.lookups is not None)
