# Completion for fish. The program itself says what may come next (nanovllm complete WORD...).
function __nanovllm_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] complete $words[2..-1] 2>/dev/null)
        switch $line
            case '<folders>'
                __fish_complete_directories (commandline -ct) ''
            case '<files>'
                __fish_complete_path (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c nanovllm -f -a '(__nanovllm_complete)'
