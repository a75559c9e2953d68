# Writes OUTPUT, which defines the chat page (PAGE, an HTML file) and its Content-Security-Policy (nanovllm/server/page/page.h). The
# policy names the hashes of the page's one style and one script, so a browser runs nothing else, whatever a model writes.
function(hash_of element result)
  string(REGEX MATCH "<${element}>(.*)</${element}>" found "${page}")
  string(SHA256 hex "${CMAKE_MATCH_1}")
  # Base64 of the 32 bytes, which CMake does not have: 3 bytes (6 digits of hex) are 4 characters, and 2 bytes remain.
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(base64)
  foreach(from RANGE 0 60 6)
    string(SUBSTRING ${hex}00 ${from} 6 digits)
    foreach(shift 18 12 6 0)
      math(EXPR index "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${index} 1 character)
      string(APPEND base64 ${character})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${result} "'sha256-${base64}='" PARENT_SCOPE)
endfunction()

file(READ ${PAGE} page)
hash_of(style style)
hash_of(script script)
set(policy "default-src 'none'; script-src ${script}; style-src ${style}; img-src data:; connect-src 'self'; base-uri 'none'; ")
string(APPEND policy "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
file(WRITE ${OUTPUT} "#include \"nanovllm/server/page/page.h\"

namespace nanovllm::server {

const std::string_view kPage = R\"page(${page})page\";
const std::string_view kPagePolicy = \"${policy}\";

}  // namespace nanovllm::server
")
