"""use_instructor.py URL KEY: reads a JSON object from an answer in Markdown, whole and streamed."""
import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


url, key = sys.argv[1:]
client = instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key=key), mode=instructor.Mode.MD_JSON)
ask = {"model": "served", "response_model": Person, "messages": [{"role": "user", "content": "Ada is 36."}]}
whole = client.chat.completions.create(**ask)
*_, streamed = client.chat.completions.create_partial(**ask)
print(json.dumps([whole.model_dump(), streamed.model_dump()]))
