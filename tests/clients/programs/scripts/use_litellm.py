"""use_litellm.py URL KEY: answers a question with tools, as an OpenAI-compatible server and as Anthropic's."""
import json
import sys

import litellm

url, key = sys.argv[1:]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {argument: {}}}}}
         for name, argument in (("get_weather", "city"), ("get_time", "zone"))]
RESULTS = {"get_weather": "rain in Paris", "get_time": "noon in CET"}


def answer(stream: bool, **options: str) -> str:
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Do I need an umbrella?"}]
    while True:
        response = litellm.completion(**options, api_key=key, messages=messages, tools=TOOLS, stream=stream)
        if stream:
            response = litellm.stream_chunk_builder(list(response))
        message = response.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})


answers = {}
for path, options in {
    "/v1/chat/completions": {"model": "hosted_vllm/served", "api_base": url + "/v1"},
    "/v1/messages": {"model": "anthropic/served", "api_base": url},
}.items():
    answers[path] = [answer(stream, **options) for stream in (False, True)]
print(json.dumps(answers))
