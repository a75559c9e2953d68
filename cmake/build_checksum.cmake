# Writes OUTPUT, which defines a number that differs from one state of the SOURCES to another: ranks compare it, since what
# they share in memory has no other description.
set(all)
file(STRINGS ${SOURCES} names)
foreach(name ${names})
  file(SHA256 ${name} sum)
  string(APPEND all ${sum})
endforeach()
string(SHA256 sum "${all}")
string(SUBSTRING ${sum} 0 16 sum)
file(WRITE ${OUTPUT} "#include \"nanovllm/runtime/ranks/step_channel.h\"\n\nconst uint64_t nanovllm::kBuildChecksum = 0x${sum};\n")
