"""Chat templates of every kind that families of models have, written for the tests, and what they render."""

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TALK = [
    {"role": "user", "content": " Hi, <b>é</b>\n"},
    {"role": "assistant", "content": "Yes?\n\n"},
    {"role": "user", "content": "1 + 1"},
]
SYSTEM = {"role": "system", "content": "Be brief."}

CHATML = """\
{% for message in messages %}
{% if loop.first and message.role != 'system' %}
{{ '<|im_start|>system\\nA default.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}"""
HEADERS = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|h|>system<|/h|>\\n\\n" ~ system ~ "<|eot|>" }}
{%- for message in messages %}
    {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|/h|>\\n\\n' }}{%- endif %}"""
TURNS = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<turn>' + role + '\\n' + message['content'] | trim + '</turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""
INSTRUCTIONS = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, got " + message["role"] | upper) }}
    {%- endif %}
{%- endfor %}"""
TAGS = (
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
THOUGHTS = """\
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
          and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\\n') if message.content is string else '' %}
    {%- if loop.index0 > ns.last or loop.last %}
        {{- '<' + message.role + '>' + message.content + '\\n' }}
    {%- else %}
        {{- '<' + message.role + '>' + content + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
MACROS = """\
{%- macro turn(role, text='none') -%}
[{{ role | title }}] {{ text | replace('\\n', '|') }}
{%- endmacro %}
{#- a comment -#}
{% for message in messages | selectattr('role', 'ne', 'system') | list %}
  {% if message.content | length > 8 %}{% continue %}{% endif %}
  {{ turn(message.role, text=message.content) }}
  {% if loop.index == 2 %}{% break %}{% endif %}
{% endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ unknown }} {{ unknown is none }}
"""
JSON = """\
{{ messages | tojson }}
{{ {"a": [1, 2.5, none, true]} | tojson(indent=2) }}
{{ 'é' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}
{{ dict(a=1)['a'] }} {{ dict.fromkeys(['x'], 0) | items | list }} {% set d = {'k': 'v'} %}{{ d.items() | list }}
"""
GENERATION = """\
{% for message in messages %}
{% set mark = '!' %}
{% if message.role == 'assistant' %}
{% generation %}{% set mark = '?' %}{{ message.content }}{{ mark }}{% endgeneration %}{{ mark }}
{% else %}{{ message.role }}: {{ message.content }}
{% endif %}
{% endfor %}
{%- generation -%} A {%- endgeneration -%}
"""

PAIRS = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{% set system_message = false %}{% endif %}{% for message in loop_messages %}
{% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}
"""
LINES = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{%+ elif message['role'] == 'system' +%}
  {{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' -%}
    {{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

RENDERED = {
    CHATML: "<|im_start|>system\nA default.<|im_end|>\n\n<|im_start|>user\n Hi, <b>é</b>\n<|im_end|>\n\n"
    "<|im_start|>assistant\nYes?\n\n<|im_end|>\n\n<|im_start|>user\n1 + 1<|im_end|>\n\n<|im_start|>assistant\n",
    HEADERS: "<s><|h|>system<|/h|>\n\n<|eot|><|h|>user<|/h|>\n\nHi, <b>é</b><|eot|><|h|>assistant<|/h|>\n\nYes?<|eot|>"
    "<|h|>user<|/h|>\n\n1 + 1<|eot|><|h|>assistant<|/h|>\n\n",
    TURNS: "<s><turn>user\nHi, <b>é</b></turn>\n<turn>model\nYes?</turn>\n<turn>user\n1 + 1</turn>\n<turn>model\n",
    INSTRUCTIONS: "<s>[INST]  Hi, <b>é</b>\n[/INST] Yes?</s>[INST] 1 + 1[/INST]",
    TAGS: "<|user|>\n Hi, <b>é</b>\n<|end|>\n<|assistant|>\nYes?\n\n<|end|>\n<|user|>\n1 + 1<|end|>\n<|assistant|>\n",
    THOUGHTS: "<user> Hi, <b>é</b>\n\n<assistant>Yes?\n\n\n<user>1 + 1\n<assistant>",
    MACROS: "  [Assistant] Yes?||\nuser,assistant,user  False",
    JSON: '[{"role": "user", "content": " Hi, <b>é</b>\\n"}, {"role": "assistant", "content": "Yes?\\n\\n"}, '
    '{"role": "user", "content": "1 + 1"}]\n{\n  "a": [\n    1,\n    2.5,\n    null,\n    true\n  ]\n}\n'
    "\"\\u00e9\" {\"a\":2,\"b\":1}\n1 [('x', 0)] [('k', 'v')]",
    PAIRS: "<s>[INST] Hi, <b>é</b> [/INST]\n Yes? </s><s>[INST] 1 + 1 [/INST]\n",
    LINES: "<|user|>\n Hi, <b>é</b>\n</s>\n<|assistant|>\nYes?\n\n</s>\n<|user|>\n1 + 1</s>\n<|assistant|>\n",
    GENERATION: "user:  Hi, <b>é</b>\n\nYes?\n\n?!\nuser: 1 + 1\nA",
}
"""Templates, and their texts of `TALK` where the model's next turn begins."""
