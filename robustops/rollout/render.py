"""Chat messages <-> tokens: the only place that does either.

Rollouts are token-in/token-out. The prompt is rendered once by the model's chat template; after that the
history only ever grows: the sampled ids stay as they are, and a tool result adds the ids of what the
template puts between an assistant's end of turn and the next assistant message. Nothing is re-tokenised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from robustops.errors import ConfigError
from robustops.records import Task, ToolCall, ToolResult
from robustops.worlds.toolset import ToolSpec

_OPEN, _CLOSE = re.compile(r"<tool_call>\s*"), re.compile(r"\s*(</tool_call>|$)")
#: Prompts that a renderer remembers; a step of training has as many as it has groups.
PROMPTS_KEPT = 64
_MARK_ANSWER, _MARK_RESULT = "robustops-answer", "robustops-result"


@dataclass(frozen=True)
class Message:
    """A parsed assistant message. malformed: it tried to call a tool, but not in a readable form."""

    text: str
    call: ToolCall | None
    malformed: bool = False


def chat_tools(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tool specs in the JSON form that chat templates and endpoints take."""
    return [
        {
            "type": "function",
            "function": {"name": s.name, "description": s.description, "parameters": s.input_schema},
        }
        for s in specs
    ]


def parse_message(text: str) -> Message:
    """Read the first tool call of a message (Hermes form: JSON between <tool_call> tags).

    Further calls of the same message are ignored: one call a turn.
    """
    found = _OPEN.search(text)
    if found is None:
        return Message(text, None)
    body = _first_object(text[found.end() :])
    name, arguments = body.get("name"), body.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Message(text, None, malformed=True)
    return Message(text, ToolCall(name, arguments))


def _first_object(text: str) -> dict[str, Any]:
    """The JSON object that the text begins with, up to a closing tag; {} if there is none.

    Only what JSON and UTF-8 can carry is read, since a call travels to files, servers and databases: no
    NaN or infinity, no half of a surrogate pair.
    """
    try:
        body, end = json.JSONDecoder().raw_decode(text)
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) and _CLOSE.match(text, end) else {}


def call_text(call: ToolCall) -> str:
    """The text of a tool call, as a scripted expert would write it."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


class Renderer:
    """Tokens of one model family.

    tokenizer: must have a chat template that knows tools. `stop_ids` are its end-of-turn tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.chat_template is None:
            raise ConfigError(
                "this tokenizer has no chat template; choose an instruction-tuned model or set one"
            )
        self.tokenizer = tokenizer
        if tokenizer.eos_token_id is None:
            raise ConfigError("this tokenizer has no end-of-turn token; set tokenizer.eos_token")
        self.end = str(tokenizer.eos_token)
        self.stop_ids = {int(tokenizer.eos_token_id)}
        marked = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
        self._special = sorted({*tokenizer.all_special_tokens, *marked})
        self._before_result, self._after_result = self._result_frame()
        #: Prompts made last, with their tools: a group's episodes begin with the same one.
        self._prompts: dict[tuple[str, str], tuple[list[ToolSpec], list[int]]] = {}

    def prompt(self, task: Task, specs: Sequence[ToolSpec]) -> list[int]:
        """Ids of policy, tools and request, up to where the assistant begins."""
        key, tools = (task.policy, task.prompt), list(specs)
        known = self._prompts.get(key)
        if known is None or known[0] != tools:
            if len(self._prompts) >= PROMPTS_KEPT:
                del self._prompts[next(iter(self._prompts))]
            known = self._prompts[key] = (tools, self._make_prompt(task, tools))
        return list(known[1])

    def _make_prompt(self, task: Task, specs: Sequence[ToolSpec]) -> list[int]:
        messages = [{"role": "system", "content": task.policy}, {"role": "user", "content": task.prompt}]
        text = self.tokenizer.apply_chat_template(
            messages,
            tools=chat_tools(specs),  # type: ignore[arg-type]
            tokenize=False,
            add_generation_prompt=True,
        )
        return self._encode(str(text))

    def result(self, result: ToolResult) -> list[int]:
        """Ids between an assistant's end-of-turn token and the next assistant message."""
        return self._encode(self._before_result + self._harmless(result.text) + self._after_result)

    def answer(self, text: str) -> list[int]:
        """Ids of an assistant message that was not sampled, its end-of-turn token included."""
        return self._encode(text + self.end)

    def parse(self, token_ids: Sequence[int]) -> Message:
        """The message that sampled ids spell."""
        ids = [token for token in token_ids if token not in self.stop_ids]
        return parse_message(str(self.tokenizer.decode(ids, skip_special_tokens=False)).strip())

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _harmless(self, text: str) -> str:
        """A tool's text must not be able to end a turn or open another one."""
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + " " + token[1:])
        return text

    def _result_frame(self) -> tuple[str, str]:
        """What the chat template writes before and after a tool's text."""
        messages = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": _MARK_ANSWER},
            {"role": "tool", "content": _MARK_RESULT},
        ]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        if _MARK_RESULT not in text or _MARK_ANSWER not in text:
            raise ConfigError("this chat template drops tool messages; choose a model that knows tools")
        between, after = text.split(_MARK_ANSWER, 1)[1].split(_MARK_RESULT, 1)
        if not between.startswith(self.end):
            raise ConfigError(
                f"this chat template does not end an assistant message with {self.end!r}; "
                "set the tokenizer's eos_token to its end-of-turn token"
            )
        return between.removeprefix(self.end), after
