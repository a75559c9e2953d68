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

# A compiler of an older standard says what the header needs, before any other error.
file(WRITE ${work}/old.cpp "#include <nanovllm/llm.h>\n")
execute_process(COMMAND ${COMPILER} -std=c++17 -fsyntax-only -I${work}/prefix/include ${work}/old.cpp
                ERROR_VARIABLE out RESULT_VARIABLE status)
string(REGEX MATCH "error: [^\n]*" out "${out}")
if(status EQUAL 0)
  message(FATAL_ERROR "nanovllm/llm.h was accepted as C++17")
endif()
expect("nanovllm/llm.h needs C\\+\\+20" "a compilation as C++17")

# The installed headers give no warning to a program that turns more of them into errors than this tree does.
file(WRITE ${work}/strict.cpp "#include <nanovllm/llm.h>\n")
run(${COMPILER} -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -I${work}/prefix/include ${work}/strict.cpp)

# pkg-config names the paths of the moved installation.
file(GLOB_RECURSE pc ${work}/prefix/*/nanovllm.pc)
cmake_path(GET pc PARENT_PATH pc_dir)
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  set(ENV{PKG_CONFIG_PATH} ${pc_dir})
  run(${PKG_CONFIG} --cflags --libs nanovllm)
  separate_arguments(flags UNIX_COMMAND "${out}")
  run(${COMPILER} -std=c++20 ${SOURCE_DIR}/examples/example.cpp -o ${work}/with_pkg_config ${flags} -Wl,-rpath,${pc_dir}/..)
  execute_process(COMMAND ${work}/with_pkg_config no/such/folder ERROR_VARIABLE out RESULT_VARIABLE status)
  expect("^no/such/folder: [^\n]*\n$" "the example, built with pkg-config")
  run(${PKG_CONFIG} --modversion nanovllm)
  set(version "${out}")
  run(${work}/prefix/bin/nanovllm --version)
  expect("^nanovllm ${version}$" "the version of nanovllm.pc")
else()
  message("pkg-config is not installed, so nanovllm.pc is not tested")
endif()

# The manual page has every command, and groff has nothing to complain about.
set(page ${work}/prefix/share/man/man1/nanovllm.1)
file(READ ${page} out)
foreach(command generate chat tokenize detokenize render info "bench throughput" "bench latency"
                "bench sampling" "bench cold")
  expect("\n.SS nanovllm ${command} MODEL" "nanovllm.1")
endforeach()
foreach(section NAME SYNOPSIS OPTIONS COMMANDS "ENGINE OPTIONS" "EXIT STATUS")
  expect("\n.SH ${section}\n" "nanovllm.1")
endforeach()
find_program(GROFF groff)
if(GROFF)
  execute_process(COMMAND ${GROFF} -man -Tutf8 -ww ${page} OUTPUT_QUIET ERROR_VARIABLE out)
  expect("^$" "the warnings of groff about nanovllm.1")
else()
  message("groff is not installed, so the layout of nanovllm.1 is not tested")
endif()

foreach(file bash-completion/completions/nanovllm zsh/site-functions/_nanovllm fish/vendor_completions.d/nanovllm.fish)
  if(NOT EXISTS ${work}/prefix/share/${file})
    message(FATAL_ERROR "share/${file} was not installed")
  endif()
endforeach()
