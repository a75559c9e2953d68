# Writes OUTPUT, which defines a checksum of the SOURCES. The ranks compare it at start, because the layout of their shared memory
# is the same only in processes of the same build.
set(all)
file(STRINGS ${SOURCES} names)
foreach(name ${names})
  file(SHA256 ${name} sum)
  string(APPEND all ${sum})
endforeach()
string(SHA256 sum "${all}")
string(SUBSTRING ${sum} 0 16 sum)
file(WRITE ${OUTPUT} "#include \"nanovllm/runtime/ranks/step_channel.h\"\n\nconst uint64_t nanovllm::kBuildChecksum = 0x${sum};\n")
