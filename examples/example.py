"""Asks a chat model two questions, as nano-vLLM's example.py does.

python examples/example.py [MODEL]
"""

import sys

from nanovllm import LLM, SamplingParams


def main(model: str = "models/tiny-tales") -> None:
    llm = LLM(model, enforce_eager=True, tensor_parallel_size=1)
    questions = ["introduce yourself", "list all prime numbers within 100"]
    prompts = [
        llm.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        for question in questions
    ]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.6, max_tokens=256))
    for prompt, output in zip(prompts, outputs):
        print(f"\nPrompt: {prompt!r}\nCompletion: {output['text']!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
