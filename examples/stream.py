# A notebook in the form of a script: editors can run it cell by cell, and
# python examples/stream.py [MODEL] runs all of it.

# %% Load a model
import sys

from nanovllm import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "models/tiny-tales"
llm = LLM(model, kvcache_block_size=16)

# %% Print an answer while it is generated
for piece in llm.stream("Once upon a time", SamplingParams(temperature=0.6, max_tokens=64, seed=1)):
    print(piece["text"], end="", flush=True)
print()

# %% A conversation: the prefix cache has the tokens of the earlier turns
system = "You tell stories to children. There is an animal in each, and all of them end well."
messages = [{"role": "system", "content": system}]
for question in ("introduce yourself", "tell me a story about a fox"):
    print(f"\n> {question}")
    messages.append({"role": "user", "content": question})
    prompt = llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    answer = ""
    for piece in llm.stream(prompt, SamplingParams(temperature=0.6, max_tokens=128, seed=1)):
        print(piece["text"], end="", flush=True)
        answer += piece["text"]
        if piece["output"]:
            print(f"\n[{piece['output']['num_cached_tokens']} of {len(prompt)} tokens cached]")
    messages.append({"role": "assistant", "content": answer})

# %% Leaving the loop aborts the request
for piece in llm.stream("The fox said to the crow,", SamplingParams(max_tokens=1000)):
    print(piece["text"], end="", flush=True)
    if "." in piece["text"]:
        break
print()

# %% Free the memory
llm.exit()
