
# Candidates that dlock itself knows: names of the configuration file, and within 300 ms what the store tells.
function __dlock_values
    set -l words (commandline -opc)
    set -e words[1]
    command dlock __complete $argv[1] $words 2>/dev/null
end
function __dlock_after_dashes
    contains -- -- (commandline -opc)
end
function __dlock_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    complete -C (string join -- ' ' (string escape -- $words[(math $at + 1)..-1]) (commandline -ct))
end
complete -c dlock -s b -l backend -x -a '(__dlock_values backends)'
complete -c dlock -s k -l key -x -a '(__dlock_values keys)'
complete -c dlock -l fence -x -a '(__dlock_values fences)'
complete -c dlock -l namespace -x -a '(__dlock_values namespaces)'
for name in acquire renew verify release hold inspect names history break explain forget
    complete -c dlock -n "__fish_seen_subcommand_from $name; and not __dlock_after_dashes" -f -a '(__dlock_values keys)'
end
complete -c dlock -n "__fish_seen_subcommand_from help" -f -a "run acquire renew verify release hold inspect names list history break doctor init gc completions man"
complete -c dlock -n __dlock_after_dashes -f -a '(__dlock_command)'
