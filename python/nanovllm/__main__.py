from nanovllm._binary import main

main()
