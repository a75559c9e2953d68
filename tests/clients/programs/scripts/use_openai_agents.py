"""use_openai_agents.py URL KEY: answers a question with tools, in the Responses API (the default) and the chat API."""
import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

url, key = sys.argv[1:]


@function_tool
def get_weather(city: str) -> str:
    return f"rain in {city}"


@function_tool
def get_time(zone: str) -> str:
    return f"noon in {zone}"


async def main() -> None:
    set_tracing_disabled(True)  # traces are sent to OpenAI
    client = AsyncOpenAI(base_url=url + "/v1", api_key=key)
    answers = {}
    for path, kind in (("/v1/responses", OpenAIResponsesModel), ("/v1/chat/completions", OpenAIChatCompletionsModel)):
        agent = Agent(name="helper", instructions="You help.", model=kind(model="served", openai_client=client),
                      tools=[get_weather, get_time])
        whole = await Runner.run(agent, "Do I need an umbrella?")
        streamed = Runner.run_streamed(agent, "Do I need an umbrella?")
        async for _ in streamed.stream_events():
            pass
        answers[path] = [whole.final_output, streamed.final_output]
    print(json.dumps(answers))


asyncio.run(main())
