"""use_langchain.py URL KEY: answers a question with tools, in the chat API and the Responses API."""
import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

url, key = sys.argv[1:]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def get_time(zone: str) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


answers = {}
for path in ("/v1/chat/completions", "/v1/responses"):
    model = ChatOpenAI(model="served", base_url=url + "/v1", api_key=key, use_responses_api=path == "/v1/responses")
    agent = create_agent(model, [get_weather, get_time], system_prompt="You help.")
    question = {"messages": [{"role": "user", "content": "Do I need an umbrella?"}]}
    answers[path] = [agent.invoke(question)["messages"][-1].text]
    # With "messages" the agent streams what the model writes; "values" has the whole conversation after each step.
    states = [state for mode, state in agent.stream(question, stream_mode=["messages", "values"]) if mode == "values"]
    answers[path].append(states[-1]["messages"][-1].text)
print(json.dumps(answers))
