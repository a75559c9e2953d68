# Installs BUILD_DIR to a new folder, moves the folder, builds examples/ with find_package(nanovllm) against it, and runs the
# examples. They can use no other header or library of this tree.
#   cmake -DSOURCE_DIR=... -DBUILD_DIR=... -DCOMPILER=... -P install_test.cmake
set(work ${BUILD_DIR}/install_test)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} OUTPUT_VARIABLE out ERROR_VARIABLE err RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "${command}\nended with ${status}\n${out}${err}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

function(expect text what)
  if(NOT "${out}" MATCHES "${text}")
    message(FATAL_ERROR "${what}: no match for ${text} in\n${out}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples -B ${work}/examples -G Ninja -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${work}/prefix)
run(${CMAKE_COMMAND} --build ${work}/examples)

run(${work}/prefix/bin/nanovllm --version)
expect("[0-9]+\\.[0-9]+\\.[0-9]+" "nanovllm --version")

run(${work}/examples/example ${SOURCE_DIR}/models/tiny-tales)
expect("\nPrompt: '<.im_start.>user\\\\nintroduce yourself[^\n]*\nCompletion: '[^\n]+'\n" "example")
expect("\nPrompt: '[^\n]*list all prime numbers within 100[^\n]*\nCompletion: '[^\n]+'\n$" "example")

run(${work}/examples/bench ${SOURCE_DIR}/models/tiny-tales 2)
expect("^Total: [0-9]+tok, Time: [0-9.]+s, Throughput: [0-9.]+tok/s\n$" "bench")

# The example catches a UserError that the shared library threw, by its type.
execute_process(COMMAND ${work}/examples/example no/such/folder ERROR_VARIABLE out RESULT_VARIABLE status)
if(NOT status EQUAL 2)
  message(FATAL_ERROR "example no/such/folder ended with ${status}: ${out}")
endif()
expect("^no/such/folder: [^\n]*\n$" "example no/such/folder")
