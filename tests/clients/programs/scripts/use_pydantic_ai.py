"""use_pydantic_ai.py URL KEY: answers a question with tools, in all three APIs."""
import asyncio
import json
import sys

from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, key = sys.argv[1:]


def get_weather(city: str) -> str:
    return f"rain in {city}"


def get_time(zone: str) -> str:
    return f"noon in {zone}"


async def main() -> None:
    openai = OpenAIProvider(base_url=url + "/v1", api_key=key)
    anthropic = AnthropicProvider(base_url=url, api_key=key)
    models = {
        "/v1/chat/completions": OpenAIChatModel("served", provider=openai),
        "/v1/responses": OpenAIResponsesModel("served", provider=openai),
        "/v1/messages": AnthropicModel("served", provider=anthropic),
    }
    answers = {}
    for path, model in models.items():
        agent = Agent(model, instructions="You help.", tools=[get_weather, get_time])
        answers[path] = [(await agent.run("Do I need an umbrella?")).output]
        async with agent.run_stream_events("Do I need an umbrella?") as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    answers[path].append(event.result.output)
    print(json.dumps(answers))


asyncio.run(main())
